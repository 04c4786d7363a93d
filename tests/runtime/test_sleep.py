"""A server with a graphics device in its table that has room for one replica. Warm replicas give
way to one another: the driver's part is replaced by a stop of the process.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import stoker.demo
from tests.support.deploying import deploy, deployment
from tests.support.graphics import SLOW_MOVES
from tests.support.server import Server, running

ROOT = Path(__file__).parents[2]
FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PATH = "/v1/classifications/text"
TEXTS = ["The room was clean and the staff were friendly.", "Never again: cold food, rude waiters."]

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch is built for GPUs, and would look for this one"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a separate server, because the table is a setting of the whole server."""
    settings = {
        "STOKER_RUNTIME": "tests.support.graphics:with_sleep",
        "STOKER_HEARTBEAT_TIMEOUT_S": "3",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with running(tmp_path_factory.mktemp("sleep") / "data", **settings) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("sleep") as client:
        yield client


def workers(client: httpx.Client, model: str) -> list[dict[str, Any]]:
    listed = client.get("/v1/deployments").raise_for_status().json()["data"]
    return next(each["workers"] for each in listed if each["model"] == model)


def answer(client: httpx.Client, model: str) -> Any:
    body = {"model": model, "inputs": TEXTS}
    results = client.post(PATH, json=body, timeout=60).raise_for_status().json()
    # The two texts share a batch or not, which changes the last digits.
    return [{one["label"]: round(one["score"], 5) for one in each} for each in results]


def wait_status(client: httpx.Client, model: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while True:
        found = workers(client, model)
        if [worker["status"] for worker in found] == [status]:
            return found[0]
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_two_warm_models_take_turns_on_a_device_of_one(client: httpx.Client):
    first = deploy(client, FOLDER, "first", readiness="warm", device="auto", engine="torch")
    expected = answer(client, "first")
    begun = wait_status(client, "first", "ready")
    deploy(client, FOLDER, "second", readiness="warm", device="auto", engine="torch")
    assert answer(client, "second") == expected
    slept = wait_status(client, "first", "asleep")
    assert slept["pid"] == begun["pid"], "the process stays"
    shown = deployment(client, first["id"])
    assert shown["status"] == "idle" and "moved to main memory" in shown["message"], shown
    state = Path(f"/proc/{slept['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "T"
    # Longer than the heartbeat timeout.
    time.sleep(4)
    assert wait_status(client, "first", "asleep")["pid"] == begun["pid"]
    started = time.monotonic()
    assert answer(client, "first") == expected
    seconds = time.monotonic() - started
    woken = wait_status(client, "first", "ready")
    assert woken["pid"] == begun["pid"]
    wait_status(client, "second", "asleep")
    for _ in range(6):
        assert answer(client, "second") == answer(client, "first") == expected
    assert workers(client, "first")[0]["pid"] == begun["pid"]
    events = client.get(f"/v1/deployments/{first['id']}/events").raise_for_status().json()["data"]
    assert "asleep" in [event["reason"] for event in events], seconds


def test_a_cold_model_ends(client: httpx.Client):
    deploy(client, FOLDER, "cold", readiness="cold", device="auto", engine="torch")
    expected = answer(client, "cold")
    assert answer(client, "first") == expected
    deadline = time.monotonic() + 20
    while workers(client, "cold"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_sleeper_is_replaced(client: httpx.Client):
    expected = answer(client, "first")
    sleeper = wait_status(client, "second", "asleep")
    os.kill(sleeper["pid"], 9)
    assert answer(client, "second") == expected
    assert wait_status(client, "second", "ready")["pid"] != sleeper["pid"]


def is_running(pid: int) -> bool:
    """Returns True if a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_ended(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestKilledDuringAMove:
    """SIGKILL while GPU memory moves. No process stays stopped, and the next call is answered."""

    @pytest.fixture
    def slow(self, server: Server) -> Iterator[Path]:
        path = server.data_dir / SLOW_MOVES
        yield path
        path.unlink(missing_ok=True)

    def test_the_replica_that_falls_asleep(self, client: httpx.Client, slow: Path):
        expected = answer(client, "first")
        pid = wait_status(client, "first", "ready")["pid"]
        slow.write_text("sleep")
        with ThreadPoolExecutor() as pool:
            other = pool.submit(answer, client, "second")
            wait_status(client, "first", "asleep")
            os.kill(pid, 9)
            wait_ended(pid)
            # Its memory is free although the move has not ended.
            assert other.result(60) == expected
        slow.unlink()
        assert answer(client, "first") == expected
        assert wait_status(client, "first", "ready")["pid"] != pid

    def test_the_replica_that_wakes(self, client: httpx.Client, slow: Path):
        expected = answer(client, "second")
        pid = wait_status(client, "first", "asleep")["pid"]
        second = next(
            listed["id"]
            for listed in client.get("/v1/deployments").raise_for_status().json()["data"]
            if listed["model"] == "second"
        )
        slow.write_text("wake")
        client.post(f"/v1/deployments/{second}/stop").raise_for_status()
        with ThreadPoolExecutor() as pool:
            call = pool.submit(answer, client, "first")
            # The GPU is free once the other one has ended.
            while workers(client, "second"):
                time.sleep(0.05)
            time.sleep(1)
            assert not call.done()
            os.kill(pid, 9)
            wait_ended(pid)
            assert call.result(60) == expected
        assert wait_status(client, "first", "ready")["pid"] != pid
        client.post(f"/v1/deployments/{second}/start").raise_for_status()

    def test_the_server(self, server: Server, client: httpx.Client, slow: Path):
        expected = answer(client, "first")
        pids = [wait_status(client, "first", "ready")["pid"]]
        slow.write_text("sleep")
        with ThreadPoolExecutor() as pool:
            pool.submit(answer, client, "second")
            pids.append(wait_status(client, "first", "asleep")["pid"])
            server.kill()
        for pid in pids:
            wait_ended(pid)
        slow.unlink()
        server.restart()
        server.wait_ready()
        assert answer(client, "first") == answer(client, "second") == expected
