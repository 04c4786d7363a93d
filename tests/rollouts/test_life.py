"""A model's whole life from its import on: under load, through the CLI, and with its server killed.

`STOKER_LIFE_ROUNDS=10` kills the server at each step of ten lives.
"""

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.artifacts.support import eventually
from tests.cli.support import Cli
from tests.deployments.support import DEPLOYMENTS, TEXT, TOKENS
from tests.rollouts.test_versions import named
from tests.support.server import Server, running
from tools.stand_ins.model_hub import ModelHub

pytestmark = pytest.mark.release

ROUNDS = int(os.environ.get("STOKER_LIFE_ROUNDS", "1"))
REPO = "team/tagger"
MODEL = "tagger"
CALLERS = 3
REST_S = 0.03


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    hub = ModelHub()
    hub.put(REPO, named(tmp_path, "one"))
    hub.put(REPO, named(tmp_path, "two"), revision="next")
    yield hub
    hub.close()


def label_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()[0]["entity"].partition("-")[0]


def ask(client: httpx.Client) -> str:
    """Returns the name of the version that answers."""
    body = {"model": MODEL, "inputs": TEXT}
    return label_of(client.post(TOKENS, json=body, headers={"prefer": "wait=60"}, timeout=90))


class Crowd:
    """Callers that send requests in a loop and pause for twice their waiting time. Even on a slow
    machine some moments have no request in flight, in which a mirror's copies run.
    """

    def __init__(self, server: Server, key: str) -> None:
        self._server, self._key = server, key
        self._over = threading.Event()
        self.answers: list[tuple[float, str]] = []
        """Request time and version name of each answer."""
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._go_on) for _ in range(CALLERS)]

    def _go_on(self) -> None:
        with self._server.client(self._key) as client:
            while not self._over.is_set():
                try:
                    began = time.monotonic()
                    self.answers.append((began, ask(client)))
                    time.sleep(REST_S + 2 * (time.monotonic() - began))
                except BaseException as error:
                    self.failures.append(error)
                    return

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def labels(self) -> list[str]:
        return [label for _, label in self.answers]

    def hears(self, name: str, calls: int = 5) -> None:
        """Waits for answers to requests from now on and asserts that all come from this version."""
        now = time.monotonic()

        def heard() -> list[str]:
            return [label for began, label in self.answers if began > now]

        assert eventually(lambda: len(heard()) >= calls or bool(self.failures))
        assert not self.failures
        assert set(heard()) == {name}


def answered(server: Server) -> int:
    """Returns the number of answered calls that the server reports."""
    with server.client(server.operator_key) as operator:
        lines = operator.get("/metrics").raise_for_status().text.splitlines()
    labels = (f'route="{TOKENS}"', 'method="POST"', 'status="200"')
    (line,) = (
        sample
        for sample in lines
        if sample.startswith("stoker_http_requests_total")
        and all(label in sample for label in labels)
    )
    return int(float(line.rpartition(" ")[2]))


def test_by_the_command_under_load(hub: ModelHub, tmp_path: Path) -> None:
    checks = tmp_path / "checks.json"
    checks.write_text(
        json.dumps([{"name": "answers", "request": {"inputs": TEXT}, "expect": {"status": 200}}])
    )
    with running(tmp_path / "data", STOKER_HUB_ENDPOINT=hub.endpoint) as server:
        with server.account("life") as client:
            key = client.headers["authorization"].removeprefix("Bearer ")
        cli = Cli(server.base_url, key)

        def compared() -> dict[str, Any]:
            return cli.json("versions", "compare", MODEL, "2")

        made = cli.json("deploy", f"hf:{REPO}", "--as", MODEL, "--readiness", "warm")
        assert made["model"] == MODEL
        with Crowd(server, key) as crowd:
            crowd.hears("one")
            assert cli.json("check", MODEL, "--put", str(checks))["is_passed"]
            second = cli.json("versions", "add", MODEL, f"hf:{REPO}@next", "--manual")
            assert (second["number"], second["status"]) == (2, "ready")
            crowd.hears("one")
            cli.json("versions", "traffic", MODEL, "1=90", "2=10")
            assert eventually(lambda: "two" in crowd.labels or crowd.failures)
            cli.json("versions", "traffic", MODEL, "1=100", "--mirror", "2=100", "--examples")
            assert eventually(lambda: compared()["compared"] >= 3 or crowd.failures)
            crowd.hears("one")
            cli.json("versions", "promote", MODEL, "2")
            crowd.hears("two")
            cli.json("versions", "rollback", MODEL)
            crowd.hears("one")
        assert not crowd.failures
        # The server answered exactly as many calls as were sent, each by one of the two versions.
        assert eventually(lambda: answered(server) == len(crowd.labels))
        assert set(crowd.labels) == {"one", "two"}
        comparison = compared()
        assert comparison["differing"] == comparison["compared"] >= 3
        assert comparison["failed"] == 0
        assert "one-" in comparison["examples"][0]["live"]
        assert "two-" in comparison["examples"][0]["mirror"]
        states = {
            version["number"]: version["status"] for version in cli.json("versions", "list", MODEL)
        }
        assert states == {1: "live", 2: "retired"}


class Killed:
    """A server that is killed during requests."""

    def __init__(self, server: Server, client: httpx.Client, chance: random.Random) -> None:
        self.server, self.client, self.chance = server, client, chance

    def during(self, *steps: Callable[[], httpx.Response]) -> None:
        """Starts the steps, kills the server at a random moment during or right after them, and
        restarts it.
        """

        def begin(step: Callable[[], httpx.Response]) -> None:
            # The interruption is intended.
            with contextlib.suppress(httpx.TransportError):
                step()

        threads = [threading.Thread(target=begin, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
            time.sleep(self.chance.choice((0.0, 0.01, 0.03, 0.1, 0.3)))
        self.server.kill()
        for thread in threads:
            thread.join()
        self.server.restart()

    @property
    def path(self) -> str:
        (deployment,) = self.client.get(DEPLOYMENTS).raise_for_status().json()["data"]
        return f"{DEPLOYMENTS}/{deployment['id']}"

    def versions(self) -> dict[int, dict[str, Any]]:
        rows = self.client.get(f"{self.path}/versions").raise_for_status().json()["data"]
        return {version["number"]: version for version in rows}

    def settled(self) -> dict[int, dict[str, Any]]:
        def is_settled() -> bool:
            states = [version["status"] for version in self.versions().values()]
            return not {"preparing", "checking"} & set(states)

        assert eventually(is_settled)
        return self.versions()

    def check(self, *names: str) -> None:
        """Asserts that the live versions are those that the deployment reports, and that they
        answer.
        """
        versions = self.settled()
        deployment = self.client.get(self.path).raise_for_status().json()
        live = {version["id"] for version in versions.values() if version["status"] == "live"}
        shares = set((deployment["traffic"] or {"weights": {}})["weights"])
        assert live == shares | {deployment["version_id"]}
        serves = {versions[number]["id"]: name for number, name in enumerate(names, 1)}
        assert {ask(self.client) for _ in range(5)} <= {serves[version] for version in live}


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_at_each_step(hub: ModelHub, tmp_path: Path, seed: int) -> None:
    settings = {"STOKER_HUB_ENDPOINT": hub.endpoint, "STOKER_JOB_LEASE_S": "2"}
    with running(tmp_path / "data", **settings) as server, server.account() as client:
        killed = Killed(server, client, random.Random(seed))
        artifacts = imported(killed, "main", "next")

        def deploy() -> httpx.Response:
            body = {"model": MODEL, "artifact_id": artifacts[0], "readiness": "warm"}
            return client.post(DEPLOYMENTS, json=body)

        killed.during(deploy)
        if not client.get(DEPLOYMENTS).json()["data"]:
            deploy().raise_for_status()
        killed.check("one")

        def add() -> httpx.Response:
            body = {"artifact_id": artifacts[1], "promote": "manual"}
            return client.post(f"{path}/versions", json=body)

        path = killed.path
        killed.during(add)
        if len(killed.versions()) == 1:
            add().raise_for_status()
        killed.check("one", "two")
        first, second = (killed.versions()[number]["id"] for number in (1, 2))
        assert killed.versions()[2]["status"] == "ready"

        def direct(**traffic: Any) -> Callable[[], httpx.Response]:
            return lambda: client.put(f"{path}/traffic", json=traffic)

        for step in (
            direct(weights={first: 90, second: 10}),
            direct(weights={first: 100}, mirror={second: 100}),
            lambda: client.post(f"{path}/versions/{second}/promote"),
            lambda: client.post(f"{path}/rollback", json={"version": first}),
        ):
            killed.during(step)
            killed.check("one", "two")
            step().raise_for_status()
            killed.check("one", "two")
        assert {ask(client) for _ in range(5)} == {"one"}
        assert [version["status"] for version in killed.versions().values()] == ["retired", "live"]


def imported(killed: Killed, *revisions: str) -> list[str]:
    """Kills the server during imports and finishes them. Returns the ids of the artifacts."""
    client = killed.client
    made = [
        client.post("/v1/model-artifacts", json={"display_name": item}).raise_for_status().json()
        for item in revisions
    ]
    paths = [f"/v1/model-artifacts/{item['id']}" for item in made]

    def beginning(path: str, revision: str) -> Callable[[], httpx.Response]:
        body = {"repo_id": REPO, "revision": revision}
        return lambda: client.post(f"{path}/imports", json=body)

    def found(path: str) -> dict[str, Any]:
        return client.get(path).raise_for_status().json()

    steps = [beginning(*item) for item in zip(paths, revisions, strict=True)]
    killed.during(*steps)
    for path, begin in zip(paths, steps, strict=True):
        if found(path)["status"] == "created":
            begin().raise_for_status()
    for path in paths:
        assert eventually(lambda path=path: found(path)["status"] in ("ready", "failed"))
        assert found(path)["status"] == "ready", found(path)
    return [item["id"] for item in made]
