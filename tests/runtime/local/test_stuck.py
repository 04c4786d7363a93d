"""A real server with memory for one model. Replicas that hang or grow are ended, and others get
their place.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import stoker.demo
from tests.support import faulty
from tests.support.deploying import deployment, push, wait_for
from tests.support.server import Server, running

CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}"
)
SETTINGS = {
    # As with the defaults, every call times out before a replica counts as stalled.
    "STOKER_INFERENCE_TIMEOUT_S": "4",
    "STOKER_STALL_TIMEOUT_S": "7",
    "STOKER_HEARTBEAT_TIMEOUT_S": "4",
    "STOKER_STOP_GRACE_S": "3",
    "STOKER_MEMORY_BUDGET_MIB": "140",
    "STOKER_CONVERT_AFTER_S": "86400",
}


class Owner:
    """An account with one deployment of a chat model."""

    def __init__(self, server: Server, folder: Path = CHAT, **fields: Any) -> None:
        self.client = server.account()
        artifact = push(self.client, folder)["id"]
        body = {"model": "chat", "artifact_id": artifact, **fields}
        made = self.client.post("/v1/deployments", json=body).raise_for_status().json()
        self.id: str = made["id"]

    def ask(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        body = {"model": "chat", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        return self.client.post("/v1/chat/completions", json=body | fields)

    def pid(self) -> int:
        """Returns the pid of the ready worker. Sends a request first, so that one is started if
        necessary.
        """
        assert self.ask().status_code == 200
        return next(worker["pid"] for worker in self.seen["workers"] if worker["status"] == "ready")

    @property
    def seen(self) -> dict[str, Any]:
        return deployment(self.client, self.id)

    def event(self, words: str) -> dict[str, Any]:
        """Returns the latest event with these words. Waits for it, because events are written a
        moment later.
        """
        path = f"/v1/deployments/{self.id}/events?limit=100"
        deadline = time.monotonic() + 60
        while True:
            data = self.client.get(path).raise_for_status().json()["data"]
            if matching := [event for event in data if words in event["message"]]:
                return matching[0]
            assert time.monotonic() < deadline, data
            time.sleep(0.1)

    def start(self) -> None:
        self.client.post(f"/v1/deployments/{self.id}/start").raise_for_status()


class World:
    def __init__(self, server: Server, plan: Path) -> None:
        self.server = server
        self._plan = plan
        self.one, self.other = Owner(server), Owner(server)

    def goes_wrong(self, how: str | None) -> None:
        """Sets how the passes of all models fail from now on. None means that they succeed."""
        fault = {"where": "serving", "engines": ["torch"], "how": how}
        self._plan.write_text(json.dumps(fault if how else {}))


@pytest.fixture(scope="module")
def faulty_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("stuck")
    # Replicas may read only code, so the plan is a Python file.
    plan = folder / "faults" / "plan.py"
    plan.parent.mkdir()
    plan.write_text("{}")
    path = os.pathsep.join([faulty.__path__[0], str(plan.parent)])
    env = {"PYTHONPATH": path, "PYTHONFAULTS": str(plan)}
    with running(folder / "data", **SETTINGS, **env) as server:
        server.wait_ready()
        yield World(server, plan)


@pytest.fixture
def world(faulty_world: World) -> Iterator[World]:
    faulty_world.one.start()
    yield faulty_world
    faulty_world.goes_wrong(None)


def wait_gone(pid: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.1)


@pytest.mark.fault("a5")
class TestH4Hanging:
    @pytest.mark.parametrize("how", ["hang", "burn"])
    def test_h4_alive_without_callers_is_found(self, world: World, how: str) -> None:
        pid = world.one.pid()
        world.goes_wrong(how)
        assert world.one.ask().status_code == 504
        world.goes_wrong(None)
        # Callers come one at a time and each gives up before the replica counts as stalled.
        assert world.one.seen["workers"][0]["pid"] == pid
        wait_gone(pid)
        assert world.one.event("no progress on accepted work for")["reason"] == "stalled"
        assert world.one.ask().status_code == 200

    def test_h4_deaf_in_c_is_found(self, world: World) -> None:
        pid = world.one.pid()
        world.goes_wrong("deaf")
        assert world.one.ask().status_code == 504
        world.goes_wrong(None)
        wait_gone(pid)
        assert world.one.event("silent for")["reason"] == "stalled"

    def test_h4_frozen_with_nothing_to_do_is_found(self, world: World) -> None:
        pid = world.one.pid()
        os.kill(pid, signal.SIGSTOP)
        wait_gone(pid)
        assert world.one.event("silent for")["reason"] == "stalled"
        assert world.one.ask().status_code == 200


class TestH4Stopping:
    def test_h4_evicted_gives_its_memory_to_another_account(self, world: World) -> None:
        pid = world.one.pid()
        world.goes_wrong("hang")
        assert world.one.ask().status_code == 504
        world.goes_wrong(None)
        # A model of its own kind claims its estimate, which leaves no room for another one.
        assert Owner(world.server, dtype="bfloat16").ask().status_code == 200
        assert not psutil.pid_exists(pid)
        assert world.one.event("A replica was ended: it ")["reason"] in ("evicted", "stalled")

    @pytest.mark.parametrize("signal_first", [True, False])
    def test_h4_frozen_while_it_stops(self, world: World, signal_first: bool) -> None:
        pid = world.one.pid()
        stop = f"/v1/deployments/{world.one.id}/stop"
        if signal_first:
            os.kill(pid, signal.SIGSTOP)
        world.one.client.post(stop).raise_for_status()
        if not signal_first:
            # The process may have ended already.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        wait_for(world.one.client, world.one.id, "stopped")
        assert not psutil.pid_exists(pid)


@pytest.mark.fault("a4")
@pytest.mark.case(11)
class TestH5Growing:
    def test_h5_what_grows_beyond_its_claim_is_ended(self, world: World) -> None:
        pid = world.one.pid()
        world.goes_wrong("grow")
        answer = world.one.ask()
        world.goes_wrong(None)
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] == "worker_lost"
        assert "of memory, with a claim of" in error["message"]
        assert not psutil.pid_exists(pid)
        shown = world.one.seen
        assert (shown["status"], shown["reason"]) == ("failed", "memory_exceeded")
        assert world.one.event("a limit of")["reason"] == "memory_exceeded"
        again = world.one.ask()
        assert again.status_code == 503, "not at once"
        assert 0 < int(again.headers["retry-after"]) <= 10
        assert world.other.ask().status_code == 200


@pytest.fixture(scope="module")
def tricky(faulty_world: World, tmp_path_factory: pytest.TempPathFactory) -> Owner:
    """Returns an account with a model. Some messages make its template loop forever or grow."""
    folder = with_template(
        tmp_path_factory.mktemp("tricky"),
        "{% for message in messages %}{% if message.content == 'loop' %}" + ENDLESS + "{% endif"
        " %}{% if message.content == 'grow' %}{{ 'a' * 900000000 }}{% endif %}"
        "{{ message.content }}{% endfor %}",
    )
    return Owner(faulty_world.server, folder)


@pytest.mark.case(6)
class TestRow6Templates:
    @pytest.mark.parametrize(
        ("text", "why"), [("loop", "takes longer than 1 s"), ("grow", "MiB of memory")]
    )
    def test_row6_refused_and_the_replica_lives_on(
        self, tricky: Owner, text: str, why: str
    ) -> None:
        pid = tricky.pid()
        answer = tricky.ask(text)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("template_failed", "messages")
        assert why in error["message"] and "chat template" in error["message"]
        assert tricky.pid() == pid

    def test_row6_one_that_never_ends_fails_the_deployment(
        self, faulty_world: World, tmp_path: Path
    ) -> None:
        owner = Owner(faulty_world.server, with_template(tmp_path, ENDLESS))
        answer = owner.ask()
        assert answer.status_code == 503
        assert "chat template takes longer than 1 s" in answer.json()["error"]["message"]
        assert owner.seen["status"] == "failed"

    def test_row6_requests_give_no_templates_and_no_arguments(self, tricky: Owner) -> None:
        for field, value in (
            ("chat_template", "{{ 1 }}"),
            ("chat_template_kwargs", {"tokenize": True}),
        ):
            answer = tricky.ask("Hello", temperature=0, **{field: value})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith(field)


def with_template(folder: Path, template: str) -> Path:
    made = folder / "model"
    shutil.copytree(CHAT, made)
    (made / "chat_template.jinja").write_text(template)
    return made
