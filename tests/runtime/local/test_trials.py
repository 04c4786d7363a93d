"""Engines are tried before they serve. One that dies, hangs or returns wrong results costs no
answer.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import stoker.demo
from stoker.models.engines.precision import computes_in
from tests.support import faulty
from tests.support.deploying import deployment, push, wait_for
from tests.support.models import tiny_bert
from tests.support.server import Server, running

pytestmark = pytest.mark.release

CHAT, FEATURES = "/v1/chat/completions", "/v1/feature-extraction"
in_bfloat16 = pytest.mark.skipif(
    not computes_in(torch.bfloat16),
    reason="this processor does not compute in bfloat16, so that nothing is tried in it",
)
WAYS = ("sigfpe", "sigsegv", "hang", "wrong")
STALL_S = 5
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


class World:
    """A server with engines that fail as a test says, and one account of it."""

    def __init__(self, server: Server, plan: Path) -> None:
        self.client = server.account()
        self._cache = server.data_dir / "cache" / "openvino"
        self._plan = plan
        self._number = 0
        self._made: list[str] = []
        self._artifacts: dict[str, str] = {}

    def add(self, pipeline: str, folder: Path) -> None:
        """Pushes a model and converts it for all tests. Its deployment stays, but is stopped."""
        artifact = self._artifacts[pipeline] = push(self.client, folder, pipeline=pipeline)["id"]
        body = {"model": f"kept-{pipeline}", "artifact_id": artifact, "readiness": "warm"}
        # Request OpenVINO, because other load decides which engine is faster.
        body["engine"] = "openvino"
        made = self.client.post("/v1/deployments", json=body).raise_for_status().json()
        self.wait_engine(made["id"], "openvino")
        self.client.post(f"/v1/deployments/{made['id']}/stop").raise_for_status()

    def goes_wrong(self, where: str, engines: Sequence[str], how: str) -> None:
        """Sets how engines fail from now on. Deletes former deployments and trials."""
        for identifier in self._made:
            self.client.delete(f"/v1/deployments/{identifier}").raise_for_status()
        self._made.clear()
        for verdict in self._cache.glob("*/*/trial-*.json"):
            verdict.unlink()
        self._plan.write_text(json.dumps({"where": where, "engines": engines, "how": how}))

    def deploy(self, pipeline: str = "text-generation", **fields: Any) -> dict[str, Any]:
        self._number += 1
        body = {
            "model": f"{pipeline}-{self._number}",
            "artifact_id": self._artifacts[pipeline],
            "readiness": "warm",
            **fields,
        }
        made = self.client.post("/v1/deployments", json=body).raise_for_status().json()
        self._made.append(made["id"])
        return made

    def wait_engine(self, identifier: str, engine: str) -> None:
        deadline = time.monotonic() + 120
        while engine not in [
            worker["engine"] for worker in deployment(self.client, identifier)["workers"]
        ]:
            assert time.monotonic() < deadline, deployment(self.client, identifier)
            time.sleep(0.1)

    def engines(self, identifier: str) -> list[str]:
        """Returns the engines of the deployment's workers."""
        return [worker["engine"] for worker in deployment(self.client, identifier)["workers"]]

    def ask(self, model: str) -> httpx.Response:
        body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 12}
        return self.client.post(CHAT, json=body)

    def verdicts(self) -> dict[str, Any]:
        """Returns the trials' results by precision. Only one model was tried."""
        paths = self._cache.glob("*/*/trial-*.json")
        return {path.name.split("-")[1]: json.loads(path.read_text()) for path in paths}

    def events(self, identifier: str, reason: str) -> list[str]:
        """Returns the messages of the events with this reason, oldest first."""
        path = f"/v1/deployments/{identifier}/events"
        response = self.client.get(path, params={"order": "asc", "limit": 100}).raise_for_status()
        return [event["message"] for event in response.json()["data"] if event["reason"] == reason]

    def wait_events(self, identifier: str, reason: str, count: int = 1) -> list[str]:
        """Returns the same as `events`, once there are so many: events are stored later than the
        deployment's status changes.
        """
        deadline = time.monotonic() + 120
        while len(messages := self.events(identifier, reason)) < count:
            assert time.monotonic() < deadline, messages
            time.sleep(0.1)
        return messages


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yields a separate server with faulty engines and a short stall timeout."""
    folder = tmp_path_factory.mktemp("trials")
    # Trials and replicas may read only code, so the plan is a Python file.
    plan = folder / "faults" / "plan.py"
    plan.parent.mkdir()
    plan.write_text("{}")
    settings = {
        "PYTHONPATH": os.pathsep.join([faulty.__path__[0], str(plan.parent)]),
        "PYTHONFAULTS": str(plan),
        "STOKER_CONVERT_AFTER_S": "0",
        "STOKER_STALL_TIMEOUT_S": str(STALL_S),
        # With one thread, OpenVINO's bfloat16 crashes on processors with AMX.
        "STOKER_REPLICA_THREADS": "2",
    }
    with running(folder / "data", **settings) as server:
        server.wait_ready()
        made = World(server, plan)
        made.add("text-generation", Path(stoker.demo.__file__).parent / "models" / "tiny-chat")
        made.add("feature-extraction", tiny_bert(folder / "bert", "Model"))
        yield made


class Asking:
    """Calls a model continuously until the block ends."""

    def __init__(self, world: World, model: str) -> None:
        self._world = world
        self._model = model
        self._ends = False
        self.answers: list[httpx.Response] = []

    def __enter__(self) -> "Asking":
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._ask)
        return self

    def _ask(self) -> None:
        while not self._ends:
            self.answers.append(self._world.ask(self._model))
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._done.result()
        self._pool.shutdown()

    @property
    def failed(self) -> list[Any]:
        return [answer.json()["error"] for answer in self.answers if answer.status_code != 200]

    @property
    def texts(self) -> set[str]:
        answers = [answer.json() for answer in self.answers if answer.status_code == 200]
        return {answer["choices"][0]["message"]["content"] for answer in answers}


class TestAtTheTrial:
    @in_bfloat16
    @pytest.mark.parametrize("how", WAYS)
    def test_the_next_precision_serves(self, world: World, how: str) -> None:
        world.goes_wrong("trial", ["bf16"], how)
        made = world.deploy()
        with Asking(world, made["model"]) as asking:
            world.wait_engine(made["id"], "openvino")
            world.ask(made["model"])
        assert asking.failed == []
        assert asking.texts == {ANSWER}
        verdicts = world.verdicts()
        assert (verdicts["bf16"]["passed"], verdicts["f32"]["passed"]) == (False, True)
        (event,) = world.wait_events(made["id"], "engine_set_aside")
        assert event.startswith("OpenVINO in bfloat16 is not used on this machine. It ")
        telling = {"sigfpe": "SIGFPE", "sigsegv": "SIGSEGV", "hang": "hung", "wrong": "differs"}
        assert telling[how] in event
        # A new replica starts with that engine directly.
        world.client.post(f"/v1/deployments/{made['id']}/stop").raise_for_status()
        wait_for(world.client, made["id"], "stopped")
        world.client.post(f"/v1/deployments/{made['id']}/start").raise_for_status()
        wait_for(world.client, made["id"], "ready")
        world.wait_engine(made["id"], "openvino")
        assert len(world.events(made["id"], "engine_set_aside")) == 1

    def test_torch_serves_where_nothing_else_is_right(self, world: World) -> None:
        world.goes_wrong("trial", ["bf16", "f32"], "sigsegv")
        made = world.deploy()
        with Asking(world, made["model"]) as asking:
            world.wait_events(made["id"], "engine_set_aside", count=2)
        assert asking.failed == []
        assert asking.texts == {ANSWER}
        assert {worker["engine"] for worker in deployment(world.client, made["id"])["workers"]} == {
            "torch"
        }

    @pytest.mark.parametrize("how", ["sigfpe", "wrong"])
    def test_encoders_stay_with_torch(self, world: World, how: str) -> None:
        world.goes_wrong("trial", ["encoder"], how)
        made = world.deploy("feature-extraction")
        body = {"model": made["model"], "inputs": "a boat"}
        before = world.client.post(FEATURES, json=body).raise_for_status().json()
        events = world.wait_events(made["id"], "engine_set_aside")
        assert events[0].startswith("OpenVINO in float32 is not used on this machine.")
        assert world.client.post(FEATURES, json=body).json() == pytest.approx(before, abs=1e-6)
        assert world.engines(made["id"]) == ["torch"]

    @pytest.mark.parametrize(("how", "why"), [("wrong", "differ"), ("sigsegv", "SIGSEGV")])
    def test_who_wants_int8_is_told(self, world: World, how: str, why: str) -> None:
        """No other engine supports int8, so the deployment fails with a reason."""
        world.goes_wrong("trial", ["encoder"], how)
        made = world.deploy("feature-extraction", dtype="int8")
        failed = wait_for(world.client, made["id"], "failed")
        assert failed["reason"] == "engine_failed"
        assert failed["message"].startswith("OpenVINO cannot run it on this machine. In int8: ")
        assert why in failed["message"]
        assert failed["message"].endswith(" Set 'dtype' to 'auto'.")
        (event,) = world.wait_events(made["id"], "engine_set_aside")
        assert event.startswith("OpenVINO in int8 is not used on this machine. ")
        # The hint in the message solves the problem.
        body = {"dtype": "auto"}
        world.client.patch(f"/v1/deployments/{made['id']}", json=body).raise_for_status()
        body = {"model": made["model"], "inputs": "a boat"}
        assert world.client.post(FEATURES, json=body).status_code == 200

    @in_bfloat16
    def test_who_pins_it_is_told(self, world: World) -> None:
        world.goes_wrong("trial", ["bf16"], "sigfpe")
        made = world.deploy(engine="openvino", dtype="bfloat16")
        failed = wait_for(world.client, made["id"], "failed")
        assert failed["reason"] == "engine_failed"
        assert failed["message"] == (
            "OpenVINO cannot run it on this machine. In bfloat16: It ended with signal 8 (SIGFPE). "
            "Set 'engine' to 'auto' or 'torch', or 'dtype' to 'auto'."
        )
        refused = world.ask(made["model"])
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_loading"
        assert "In bfloat16: It ended with signal 8" in refused.json()["error"]["message"]
        assert refused.headers["x-should-retry"] == "false"
        # The hint in the message solves the problem.
        body = {"engine": "auto"}
        world.client.patch(f"/v1/deployments/{made['id']}", json=body).raise_for_status()
        assert world.ask(made["model"]).status_code == 200


class TestInService:
    """An engine that passed its trial may still fail on later requests."""

    @in_bfloat16
    @pytest.mark.parametrize("how", ["sigfpe", "sigsegv", "hang"])
    def test_only_what_was_in_hand_is_lost(self, world: World, how: str) -> None:
        world.goes_wrong("serving", ["bf16"], how)
        made = world.deploy()
        with Asking(world, made["model"]) as asking:
            deadline = time.monotonic() + 120
            while not world.events(made["id"], "engine_set_aside"):
                assert time.monotonic() < deadline, deployment(world.client, made["id"])
                time.sleep(0.1)
            world.wait_engine(made["id"], "openvino")
            world.ask(made["model"])
        assert [error["code"] for error in asking.failed] == ["worker_lost"]
        assert asking.texts == {ANSWER}
        (event,) = world.wait_events(made["id"], "engine_set_aside")
        assert "soon after it began to use OpenVINO. OpenVINO in bfloat16 is disabled" in event
        verdicts = world.verdicts()
        assert (verdicts["bf16"]["passed"], verdicts["f32"]["passed"]) == (False, True)

    def test_a_crash_loop_ends_in_failed(self, world: World) -> None:
        """A crash loop of the only possible engine ends in the status `failed`."""
        world.goes_wrong("serving", ["torch"], "sigsegv")
        made = world.deploy(engine="torch", readiness="cold")
        codes = [world.ask(made["model"]).json()["error"]["code"] for _ in range(4)]
        failed = deployment(world.client, made["id"])
        assert failed["status"] == "failed"
        assert "SIGSEGV" in failed["message"]
        assert codes[-1] == "model_loading"
        assert codes.count("worker_lost") <= 3
