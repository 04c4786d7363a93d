"""Tests of a fleet with blobs in a bucket that fails or is slow, and of nodes with full disks."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.buckets.conftest import CREDENTIALS
from tests.deployments.support import DEPLOYMENTS, bert, call, deploy
from tests.nodes.support import Fleet, fleet
from tests.nodes.test_faults import ANSWER_S, answered
from tests.servers.support import until
from tests.support import postgres
from tests.support.bucket import BUCKET, Proxy, faulty, moto
from tests.support.deploying import push
from tests.support.disks import small_disk
from tests.support.on_nodes import NodeHost

pytestmark = pytest.mark.release

MIB = 1024 * 1024
DISK_MIB = 48
SLOW_S = 0.5
LATE_S = 2.5
"""Delay in seconds. Longer than a request to the bucket may take, so the request is retried."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with moto(tmp_path_factory.mktemp("moto") / "log") as s3, faulty(s3) as faulty_proxy:
        yield faulty_proxy


@pytest.fixture(scope="module")
def afar(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yields two gateways and two nodes that keep their blobs in a bucket."""
    env = {
        "STOKER_BLOB_URL": f"s3://{BUCKET}/fleet",
        "STOKER_BLOB_TIMEOUT_S": "4",
        "AWS_ENDPOINT_URL": proxy.address,
        **CREDENTIALS,
    }
    with (
        postgres.cluster() as cluster,
        fleet(tmp_path_factory.mktemp("afar"), cluster, **env) as bucket_fleet,
    ):
        yield bucket_fleet


@pytest.fixture(scope="module")
def key(afar: Fleet) -> str:
    with afar.gateways[0].account() as client:
        return client.headers["authorization"].removeprefix("Bearer ")


@pytest.fixture
def clients(afar: Fleet, key: str, proxy: Proxy) -> Iterator[list[httpx.Client]]:
    with contextlib.ExitStack() as stack:
        stack.callback(proxy.heal)
        yield [stack.enter_context(gateway.client(key)) for gateway in afar.gateways]


@pytest.fixture
def tagger(clients: list[httpx.Client], request: pytest.FixtureRequest) -> dict[str, Any]:
    """Returns a deployment that is already loaded."""
    made = deploy(clients[0], push(clients[0], bert())["id"], f"there-{request.node.name[5:20]}")
    for client in clients:
        until(lambda client=client: call(client, made["model"], wait=60).status_code == 200)
    return made


@pytest.mark.fault("g2")
def test_the_store_fails_while_a_node_loads(
    clients: list[httpx.Client], proxy: Proxy, tagger: dict[str, Any]
) -> None:
    """The load is answered with a 503 that names the object store. Calls of a loaded model still
    succeed. The model loads once the store recovers.
    """
    cold = deploy(clients[0], push(clients[0], bert())["id"], "cold")
    proxy.fail(503, method="GET")
    refused = call(clients[0], cold["model"], wait=30)
    assert refused.status_code == 503, refused.text
    assert "object store" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"]
    assert [call(client, tagger["model"]).status_code for client in clients] == [200, 200]
    proxy.heal()
    assert all(answered(client, cold["model"]) < 60 for client in clients)


@pytest.mark.fault("g5")
def test_the_store_is_slow_while_a_node_loads(
    clients: list[httpx.Client], proxy: Proxy, tagger: dict[str, Any]
) -> None:
    """A call that waits for the model is answered in the end. No other call waits."""
    cold = deploy(clients[0], push(clients[0], bert())["id"], "slow")
    late = iter([LATE_S])

    def slowly(_method: str, _path: str) -> None:
        time.sleep(next(late, SLOW_S))

    proxy.fault = slowly
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, clients[0], cold["model"], wait=60)
        took = list[float]()
        while not waiting.done():
            begun = time.monotonic()
            assert call(clients[1], tagger["model"]).status_code == 200
            took.append(time.monotonic() - begun)
        assert waiting.result().status_code == 200
    assert len(took) >= 4
    assert max(took) < SLOW_S + 1, took


def statuses(node: NodeHost, deployments: list[dict[str, Any]], status: str) -> set[str]:
    """Returns the deployments for which the node logged the status."""
    log = node.log.read_text()
    return {
        deployment["id"]
        for deployment in deployments
        if f'"deployment": "{deployment["id"]}", "status": "{status}"' in log
    }


@pytest.fixture
def full(afar: Fleet) -> Iterator[NodeHost]:
    """Yields a third node with a full disk."""
    node = afar.add_node()
    with small_disk(node.data_dir, DISK_MIB):
        node.start()
        fill(node.data_dir / "others", DISK_MIB * MIB)
        try:
            yield node
        finally:
            node.stop()
            afar.nodes.remove(node)


def fill(path: Path, size: int) -> None:
    """Writes zeros to the file until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range(0, size, 4096):
            file.write(bytes(4096))


@pytest.mark.fault("n9")
def test_a_node_with_a_full_disk(
    afar: Fleet, clients: list[httpx.Client], full: NodeHost, tagger: dict[str, Any]
) -> None:
    """Deployments that a full node cannot load are loaded elsewhere. Without another node the
    caller receives an error that says so. Once the disk has room, the node accepts loads like any
    other.
    """
    artifacts = [push(clients[0], bert()) for _ in range(6)]
    made = [deploy(clients[0], one["id"], f"full-{at}") for at, one in enumerate(artifacts)]
    for one in made:
        assert answered(clients[0], one["model"]) < ANSWER_S
    assert statuses(full, made, "failed"), "none was to be loaded there"
    assert not statuses(full, made, "ready")
    assert all(call(client, one["model"]).status_code == 200 for client in clients for one in made)

    other_nodes = [one for one in afar.nodes if one is not full]
    for one in other_nodes:
        one.stop()
    try:
        refused = call(clients[0], made[0]["model"], wait=30)
        assert refused.status_code == 503, refused.text
        assert "no room" in refused.json()["error"]["message"], refused.text
        (full.data_dir / "others").unlink()
        assert answered(clients[0], made[0]["model"]) < ANSWER_S
        [worker] = clients[1].get(f"{DEPLOYMENTS}/{made[0]['id']}").json()["workers"]
        assert statuses(full, made, "ready") == {made[0]["id"]}
        assert worker["status"] == "ready"
    finally:
        for one in other_nodes:
            one.start()
        for gateway in afar.gateways:
            gateway.wait_ready()
