"""Selection of a node for a model if one of two nodes has a graphics device.

The device is only reported by a fake `nvidia-smi`. Models that must run on it fail to load.
"""

import os
import stat
from collections.abc import Iterator

import httpx
import pytest

from tests.nodes.support import Fleet, fleet
from tests.nodes.test_listing import MODEL, ask, eventually, leases, nodes
from tests.support import postgres
from tests.support.deploying import deploy
from tests.support.server import Server

pytestmark = pytest.mark.release

DEVICE = "GPU-6b1d7a52-0f6e-4b5c-9f0e-5d2f1f0a3c11, NVIDIA L4, 23034"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yields a gateway and two nodes, the second with a device."""
    folder = tmp_path_factory.mktemp("driver")
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{DEVICE}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    root = tmp_path_factory.mktemp("mixed")
    with (
        postgres.cluster() as cluster,
        fleet(root, cluster, gateways=0, nodes=0, CUDA_VISIBLE_DEVICES="0") as mixed_fleet,
    ):
        mixed_fleet.add_node().start()
        mixed_fleet.add_node(PATH=f"{folder}:{os.environ['PATH']}").start()
        gateway = mixed_fleet.add_gateway()
        gateway.start()
        gateway.wait_ready()
        yield mixed_fleet


@pytest.fixture(scope="module")
def gateway(mixed: Fleet) -> Server:
    return mixed.gateways[0]


@pytest.fixture(scope="module")
def account(mixed: Fleet) -> httpx.Client:
    return mixed.account()[0]


def test_the_device_is_told_of(mixed: Fleet, gateway: Server) -> None:
    devices_by_node = {one["id"]: one["devices"] for one in nodes(gateway)}
    without, having = (devices_by_node[node.id] for node in mixed.nodes)
    assert without == []
    assert [(one["index"], one["name"]) for one in having] == [(0, "NVIDIA L4")]


@pytest.mark.parametrize(("device", "number"), [("cpu", 0), ("auto", 1)])
def test_it_is_left_to_what_may_use_it(
    mixed: Fleet, gateway: Server, account: httpx.Client, device: str, number: int
) -> None:
    """Both nodes have room. Models that need no device answer, on either node."""
    made = deploy(account, MODEL, f"on-{device}", device=device)
    ask(account, f"on-{device}")
    [(node, _)] = eventually(lambda: leases(gateway, made["id"]))
    assert node == mixed.nodes[number].id


def test_what_is_to_run_on_it_comes_to_it(
    mixed: Fleet, gateway: Server, account: httpx.Client
) -> None:
    made = deploy(account, MODEL, "on-cuda", device="cuda", readiness="hot")
    [(node, _)] = eventually(lambda: leases(gateway, made["id"]))
    assert node == mixed.nodes[1].id


def test_no_node_has_it(account: httpx.Client) -> None:
    deploy(account, MODEL, "on-the-fourth", device="cuda:3")
    body = {"model": "on-the-fourth", "inputs": "What a day!"}
    refused = account.post("/v1/classifications/text", json=body, headers={"prefer": "wait=1"})
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert error["message"].startswith("'on-the-fourth' requires GPU 3, but no node has it")
    assert error["code"] == "insufficient_memory"
