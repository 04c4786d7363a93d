"""A real server whose replicas end while they record a pass. The next ones serve without it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker.demo
from tests.support.deploying import deploy, deployment
from tests.support.server import Server, running

MODELS = Path(stoker.demo.__file__).parent / "models"
FRAGILE = Path(__file__).parents[2] / "support" / "fragile"
SHORT = "the room was clean"
LONG, LONGER = f"{SHORT} " * 8, f"{SHORT} " * 16
USES = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = os.pathsep.join([str(FRAGILE), *filter(None, [os.environ.get("PYTHONPATH")])])
    folder = tmp_path_factory.mktemp("fragile") / "data"
    with running(folder, PYTHONPATH=path) as server:
        server.wait_ready()
        yield server


class World:
    """A deployment on a fragile engine."""

    def __init__(self, server: Server, model: str, engine: str) -> None:
        self.client = server.account()
        self.id: str = deploy(self.client, MODELS / model, "fragile", engine=engine)["id"]

    def classify(self, text: str) -> Any:
        """Returns the answer. Sends the request as often as a pass needs to be recorded."""
        body = {"model": "fragile", "inputs": text}
        answers = [self.client.post("/v1/classifications/text", json=body) for _ in range(USES)]
        assert [answer.status_code for answer in answers] == [200] * USES, answers[-1].text
        return answers[-1].json()

    def messages(self) -> list[str]:
        path = f"/v1/deployments/{self.id}/events?limit=100"
        events = self.client.get(path).raise_for_status().json()["data"]
        skipped = [event for event in events if event["reason"] == "recording_skipped"]
        return [event["message"] for event in reversed(skipped)]

    def wait_for_event(self, count: int) -> str:
        """Returns the latest event, once there are this many."""
        deadline = time.monotonic() + 60
        while len(messages := self.messages()) < count:
            assert time.monotonic() < deadline, messages
            time.sleep(0.05)
        assert len(messages) == count
        return messages[-1]

    def wait_for_problem(self) -> str:
        """Returns the reason that a ready worker records nothing, once it has one."""
        deadline = time.monotonic() + 60
        while True:
            workers = deployment(self.client, self.id)["workers"]
            if problem := next((row["recording_problem"] for row in workers), ""):
                return problem
            assert time.monotonic() < deadline, workers
            time.sleep(0.05)


@pytest.mark.release
def test_replicas_that_end_while_they_record_passes(server: Server) -> None:
    """The first one is killed, and the next one skips that pass. It loses its device in another
    pass. From then on, passes are not recorded any more.
    """
    world = World(server, "tiny-sentiment", "fragile")
    known = world.classify(SHORT)
    message = world.wait_for_event(1)
    assert message.startswith("A replica ended while it recorded a CUDA graph (input_ids 1x")
    assert message.endswith("Later replicas do not record this one.")
    assert world.classify(SHORT) == known
    world.classify(LONG)
    message = world.wait_for_event(2)
    assert message.endswith("Later replicas do not record CUDA graphs of this model.")
    world.classify(LONGER)
    assert world.classify(SHORT) == known
    assert world.wait_for_problem() == "Earlier replicas ended while they recorded passes."
    assert len(world.messages()) == 2


def test_a_language_model_that_is_killed_in_a_capture(server: Server) -> None:
    world = World(server, "tiny-chat", "cut")
    body = {
        "model": "fragile",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "temperature": 0,
    }

    def ask() -> str:
        answer = world.client.post("/v1/chat/completions", json=body).raise_for_status().json()
        return answer["choices"][0]["message"]["content"]

    known = ask()
    assert "(decode steps 1x" in world.wait_for_event(1)
    assert ask() == known
    assert "(decode steps 256x" in world.wait_for_event(2)
    assert ask() == known
    assert world.wait_for_problem() == "Earlier replicas ended while they recorded passes."
