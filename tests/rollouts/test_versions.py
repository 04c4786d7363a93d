"""Versions over HTTP, on real replicas. The labels of an answer show which version gave it."""

import hashlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import safetensors.torch

from tests.artifacts.support import eventually
from tests.checks.support import doubling
from tests.deployments.support import DEPLOYMENTS, TEXT, TOKENS, bert, check_error, key_for
from tests.support.deploying import push
from tests.support.server import Server, running

DEADLINE_S = 120
INVALID = (400, "InvalidRequestError", "invalid_request")
VERSION = "x-stoker-version"


def named(place: Path, name: str) -> Path:
    """Returns a folder of the tiny model with labels that start with this name."""
    folder = place / name
    if not folder.exists():
        shutil.copytree(bert(), folder)
        path = folder / "config.json"
        config = json.loads(path.read_bytes())
        config["id2label"] = {str(index): f"{name}-{index}" for index in range(3)}
        config["label2id"] = {label: int(index) for index, label in config["id2label"].items()}
        path.write_text(json.dumps(config))
    return folder


def broken(place: Path) -> Path:
    """Returns the folder of a model that lacks weights."""
    folder = named(place, "broken")
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights.pop("classifier.weight", None)
    safetensors.torch.save_file(weights, path, {"format": "pt"})
    return folder


def point(deployment_id: str, user: str) -> int:
    """Returns a caller's point between 0 and 99. The cumulative shares of the versions decide which
    version gets it.
    """
    return int.from_bytes(hashlib.sha256(f"{deployment_id}\n{user}".encode()).digest()[:8]) % 100


class Bench:
    """A deployment of a server."""

    def __init__(self, client: httpx.Client, place: Path, **fields: Any) -> None:
        self.client = client
        self.place = place
        self.artifacts = {name: self.push(named(place, name)) for name in ("one", "two")}
        body = {"model": f"tagger-{place.name}", "artifact_id": self.artifacts["one"], **fields}
        self.deployment = client.post(DEPLOYMENTS, json=body).raise_for_status().json()
        self.path = f"{DEPLOYMENTS}/{self.deployment['id']}"
        self.first = self.deployment["version_id"]

    def push(self, folder: Path) -> str:
        return push(self.client, folder)["id"]

    def label(self, **headers: str) -> str:
        """Returns the name of the version that answers."""
        return self.asked(**headers)[0]

    def asked(self, **headers: str) -> tuple[str, httpx.Headers]:
        body = {"model": self.deployment["model"], "inputs": TEXT}
        answer = self.client.post(
            TOKENS, json=body, headers={"prefer": "wait=60", **headers}, timeout=90
        )
        assert answer.status_code == 200, answer.text
        return answer.json()[0]["entity"].partition("-")[0], answer.headers

    def post(self, **body: Any) -> httpx.Response:
        return self.client.post(f"{self.path}/versions", json=body)

    def begun(self, name: str = "two", **body: Any) -> dict[str, Any]:
        answer = self.post(artifact_id=self.artifacts[name], **body)
        assert answer.status_code == 202, answer.text
        assert answer.json()["status"] == "preparing"
        return answer.json()

    def made(self, name: str = "two", **body: Any) -> dict[str, Any]:
        return self.settled(self.begun(name, **body))

    def settled(self, version: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while version["status"] in ("preparing", "checking"):
            assert time.monotonic() < deadline, version
            time.sleep(0.05)
            version = self.version(version["id"])
        return version

    def version(self, identifier: str) -> dict[str, Any]:
        return self.client.get(f"{self.path}/versions/{identifier}").raise_for_status().json()

    def versions(self) -> list[dict[str, Any]]:
        return self.client.get(f"{self.path}/versions").raise_for_status().json()["data"]

    def found(self) -> dict[str, Any]:
        return self.client.get(self.path).raise_for_status().json()

    def direct(self, weights: dict[str, int], sticky: str = "none") -> httpx.Response:
        return self.client.put(f"{self.path}/traffic", json={"weights": weights, "sticky": sticky})

    def roll_back(self, **body: Any) -> httpx.Response:
        return self.client.post(f"{self.path}/rollback", json=body)


def check_refused(response: httpx.Response) -> None:
    """Asserts that a request is rejected as malformed, with a message."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == INVALID[1:]
    assert error["message"]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("versions") as client:
        yield client


@pytest.fixture
def bench(client: httpx.Client, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(client, tmp_path)
    yield bench
    client.delete(bench.path).raise_for_status()


def test_a_new_one_takes_over_and_goes_back(bench: Bench) -> None:
    assert bench.asked()[0] == "one"
    assert VERSION not in bench.asked()[1]
    (first,) = bench.versions()
    assert (first["id"], first["number"], first["status"]) == (bench.first, 1, "live")
    made = bench.made(note="trained on Monday")
    assert (made["status"], made["number"], made["note"]) == ("live", 2, "trained on Monday")
    assert made["promoted_at"]
    deployment = bench.found()
    assert (deployment["version_id"], deployment["artifact_id"]) == (
        made["id"],
        bench.artifacts["two"],
    )
    label, headers = bench.asked()
    assert (label, headers[VERSION]) == ("two", made["id"])
    first = bench.version(bench.first)
    assert first["status"] == "retired"
    assert first["retired_at"]
    # The previous version stays loaded, so that a rollback is immediate.
    assert first["is_loaded"]
    back = bench.roll_back().raise_for_status().json()
    assert (back["id"], back["status"], back["retired_at"]) == (bench.first, "live", None)
    assert bench.label() == "one"
    assert bench.found()["artifact_id"] == bench.artifacts["one"]
    # A second rollback returns to the newer version.
    assert bench.roll_back().raise_for_status().json()["id"] == made["id"]
    assert bench.label() == "two"
    assert [version["status"] for version in bench.versions()] == ["live", "retired"]


def test_under_load_nothing_fails(bench: Bench) -> None:
    bench.label()
    answers: list[tuple[float, float, str]] = []
    """Request time, answer time and version name of each answer."""
    failures: list[BaseException] = []
    over = threading.Event()

    def ask() -> None:
        try:
            while not over.is_set():
                began = time.monotonic()
                label = bench.label()
                answers.append((began, time.monotonic(), label))
        except BaseException as error:
            failures.append(error)

    def heard(since: float) -> set[str]:
        """Returns the versions that answered requests sent after that time."""
        return {label for began, _, label in answers if began > since}

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        made = bench.begun()
        before = 0.0
        while True:
            polled_at = time.monotonic()
            made = bench.version(made["id"])
            if made["status"] not in ("preparing", "checking"):
                break
            # At that time the version was not live.
            before = polled_at
            time.sleep(0.05)
        assert made["status"] == "live"
        for switch, name in enumerate(("two", "one", "two", "one")):
            if switch:
                bench.roll_back().raise_for_status()
            # Requests after an acknowledged switch are answered by the live version.
            since = time.monotonic()
            assert eventually(lambda since=since: bool(heard(since) or failures))
            assert (heard(since), failures) == ({name}, [])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert {label for _, ended, label in answers if ended < before} <= {"one"}


@pytest.mark.case(27)
def test_one_that_fails_its_checks_never_takes_over(bench: Bench) -> None:
    body = {"model": bench.deployment["model"], "inputs": TEXT}
    answer = bench.client.post(TOKENS, json=body, headers={"prefer": "wait=60"}).json()
    checks = [
        {"name": "as ever", "request": {"inputs": TEXT}, "expect": {"equal": answer}},
        {"name": "answers", "request": {"inputs": TEXT}, "expect": {"status": 200}},
    ]
    endless = {"json_schema": doubling(64, by_anchors=True)}
    further = {"name": "endless", "request": {"inputs": TEXT}, "expect": endless}
    path = f"{bench.path}/checks"
    bench.client.put(path, json={"checks": [*checks, further]}).raise_for_status()
    made = bench.made()
    assert (made["status"], made["reason"]) == ("failed", "checks_failed")
    assert "2 of 3 checks failed: as ever:" in made["message"]
    # The job ends and does not block its server.
    assert "takes longer than 2 s" in made["message"]
    bench.client.put(path, json={"checks": checks}).raise_for_status()
    assert not made["is_loaded"]
    assert bench.label() == "one"
    assert bench.found()["version_id"] == bench.first
    refused = bench.client.post(f"{bench.path}/versions/{made['id']}/promote")
    check_error(refused, 409, "ConflictError", "version_failed")
    # A version with the same answers becomes live.
    same = bench.made("one", note="the same files")
    assert same["status"] == "live"


def test_one_that_cannot_be_loaded_never_takes_over(bench: Bench, tmp_path: Path) -> None:
    bench.label()
    bench.artifacts["broken"] = bench.push(broken(tmp_path))
    made = bench.made("broken")
    assert (made["status"], made["reason"]) == ("failed", "load_failed")
    assert "classifier.weight" in made["message"]
    assert bench.label() == "one"
    assert bench.found()["status"] == "ready"


def test_by_hand(bench: Bench) -> None:
    bench.label()
    made = bench.made(promote="manual")
    assert (made["status"], made["is_loaded"]) == ("ready", True)
    label, headers = bench.asked()
    assert (label, headers[VERSION]) == ("one", bench.first)
    # Callers with the account's key can try the version before its promotion.
    assert bench.label(**{VERSION: made["id"]}) == "two"
    path = f"{bench.path}/versions/{made['id']}/promote"
    assert bench.client.post(path).raise_for_status().json()["status"] == "live"
    assert bench.label() == "two"
    assert bench.label(**{VERSION: bench.first}) == "one"


def test_pinning_is_for_the_account(bench: Bench, server: Server) -> None:
    body = {"model": bench.deployment["model"], "inputs": TEXT}
    with server.client(key_for(bench.client, bench.deployment["id"])) as caller:
        refused = caller.post(TOKENS, json=body, headers={VERSION: bench.first})
        check_error(refused, 403, "ForbiddenError", "version_not_allowed")
    unknown = bench.client.post(TOKENS, json=body, headers={VERSION: "ver_nothing"})
    check_error(unknown, 404, "NotFoundError", "version_not_found", VERSION)


def test_shares_of_the_traffic(bench: Bench) -> None:
    bench.label()
    made = bench.made(promote="manual")
    deployment = bench.direct({bench.first: 75, made["id"]: 25}).raise_for_status().json()
    assert deployment["traffic"] == {
        "weights": {bench.first: 75, made["id"]: 25},
        "sticky": "none",
        "mirror": {},
        "examples": False,
    }
    assert deployment["version_id"] == bench.first
    assert [version["status"] for version in bench.versions()] == ["live", "live"]
    # Expected are 50 of 200, ± 5 standard deviations.
    counted = Counter(bench.label() for _ in range(200))
    assert 19 <= counted["two"] <= 81, counted
    # A caller identified by a header gets the same version each time, and a quarter of the callers
    # get the new one.
    bench.direct({bench.first: 75, made["id"]: 25}, "header:x-user").raise_for_status()
    for number in range(40):
        user = f"user-{number}"
        expected = "one" if point(bench.deployment["id"], user) < 75 else "two"
        assert [bench.label(**{"x-user": user}) for _ in range(2)] == [expected] * 2
    # All calls of a key count as one caller.
    bench.direct({bench.first: 50, made["id"]: 50}, "key").raise_for_status()
    assert len({bench.label() for _ in range(10)}) == 1
    whole = bench.direct({made["id"]: 100}).raise_for_status().json()
    assert (whole["traffic"], whole["version_id"]) == (None, made["id"])
    assert {bench.label() for _ in range(10)} == {"two"}
    assert bench.version(bench.first)["status"] == "retired"


def test_a_user_gets_the_same_version(client: httpx.Client, tmp_path: Path) -> None:
    bench = Bench(client, tmp_path, pipeline="feature-extraction")
    made = bench.made(promote="manual")
    bench.direct({bench.first: 75, made["id"]: 25}, "user").raise_for_status()

    def answered(**user: str) -> str:
        body = {"model": bench.deployment["model"], "input": TEXT, **user}
        answer = client.post("/v1/embeddings", json=body).raise_for_status()
        return answer.headers[VERSION]

    for user in map(str, range(40)):
        expected = bench.first if point(bench.deployment["id"], user) < 75 else made["id"]
        assert [answered(user=user) for _ in range(2)] == [expected] * 2
    # A request without a user is assigned by its key.
    assert len({answered() for _ in range(10)}) == 1
    client.delete(bench.path).raise_for_status()


@pytest.mark.parametrize(
    "body",
    [
        {"weights": {}},
        {"weights": {"ver_1": 99}},
        {"weights": {"ver_1": 50, "ver_2": 51}},
        {"weights": {"ver_1": 101, "ver_2": -1}},
        {"weights": {"ver_1": 100}, "sticky": "mood"},
        {"weights": {"ver_1": 100}, "sticky": "header:a b"},
        {"weights": {"../x": 100}},
        {"weights": {"ver_1": 12.5, "ver_2": 87.5}},
    ],
)
def test_traffic_that_is_none(bench: Bench, body: dict[str, Any]) -> None:
    check_refused(bench.client.put(f"{bench.path}/traffic", json=body))


def test_traffic_of_versions_that_take_none(bench: Bench) -> None:
    nothing = bench.direct({"ver_nothing": 100})
    check_error(nothing, 404, "NotFoundError", "version_not_found", "weights.ver_nothing")
    bench.label()
    bench.client.put(
        f"{bench.path}/checks",
        json={
            "checks": [
                {"name": "no", "request": {"inputs": TEXT}, "expect": {"top_label": "no"}},
            ]
        },
    ).raise_for_status()
    failed = bench.made()
    answer = bench.direct({failed["id"]: 10, bench.first: 90})
    place = f"weights.{failed['id']}"
    check_error(answer, 409, "ConflictError", "version_not_ready", place)
    assert bench.found()["traffic"] is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"note": "nothing new"},
        {"artifact_id": "art_1", "source": "/models"},
        {"dtype": "float31"},
        {"engine": "magic"},
        {"dtype": "float32", "promote": "never"},
        {"dtype": "float32", "strategy": "above"},
        {"dtype": "float32", "model": "other"},
        {"dtype": "float32", "note": "x" * 2000},
    ],
)
def test_versions_that_are_none(bench: Bench, body: dict[str, Any]) -> None:
    check_refused(bench.post(**body))
    assert len(bench.versions()) == 1


def test_of_another_task(bench: Bench, client: httpx.Client) -> None:
    other = push(client, bert("ForMaskedLM"))
    refused = bench.post(artifact_id=other["id"])
    error = check_error(refused, *INVALID, "artifact_id")
    assert "fill-mask" in error["message"]
    assert bench.post(artifact_id="art_unknown").status_code == 404


def test_deleting(bench: Bench) -> None:
    bench.label()
    made = bench.made()
    artifact = f"/v1/model-artifacts/{bench.artifacts['one']}"
    used = bench.client.delete(artifact)
    assert used.status_code == 409, used.text
    live = bench.client.delete(f"{bench.path}/versions/{made['id']}")
    check_error(live, 409, "ConflictError", "version_live")
    gone = bench.client.delete(f"{bench.path}/versions/{bench.first}").raise_for_status().json()
    assert gone == {"id": bench.first, "object": "deployment.version.deleted", "deleted": True}
    assert [version["id"] for version in bench.versions()] == [made["id"]]
    bench.client.delete(artifact).raise_for_status()
    check_error(bench.roll_back(), 409, "ConflictError", "no_earlier_version")
    assert bench.label() == "two"


def test_one_that_is_deleted_on_its_way(bench: Bench) -> None:
    bench.label()
    begun = bench.begun()
    bench.client.delete(f"{bench.path}/versions/{begun['id']}").raise_for_status()
    assert bench.client.get(f"{bench.path}/versions/{begun['id']}").status_code == 404
    assert bench.label() == "one"
    # The deleted version frees its place.
    assert bench.made()["status"] == "live"


def test_patch_makes_one(bench: Bench) -> None:
    # No replica is loaded, so the version is live at once.
    changed = bench.client.patch(bench.path, json={"dtype": "float32"}).raise_for_status().json()
    assert changed["dtype"] == "float32"
    assert changed["version_id"] != bench.first
    bench.label()
    changed = bench.client.patch(bench.path, json={"dtype": "bfloat16", "max_queue": 9})
    assert changed.raise_for_status().json()["max_queue"] == 9
    newest = bench.versions()[0]
    assert (newest["number"], newest["dtype"]) == (3, "bfloat16")
    assert bench.settled(newest)["status"] == "live"
    assert bench.found()["dtype"] == "bfloat16"
    # Fields that do not affect replicas create no version.
    bench.client.patch(bench.path, json={"idle_timeout_s": 60, "keep_s": 5}).raise_for_status()
    assert len(bench.versions()) == 3


def test_where_both_do_not_fit(tmp_path: Path) -> None:
    # An estimate is 128 MiB, and a replica never needs less than 12 MiB.
    settings = {"STOKER_MEMORY_BUDGET_MIB": "140"}
    with running(tmp_path / "data", **settings) as server, server.account() as client:
        bench = Bench(client, tmp_path)
        assert bench.label() == "one"
        refused = bench.post(artifact_id=bench.artifacts["two"])
        error = check_error(refused, 503, "CapacityError", "insufficient_memory")
        assert "140 MiB" in error["message"]
        assert len(bench.versions()) == 1
        begun = bench.begun(strategy="in_place")
        # Calls wait during the switch.
        labels = [bench.label() for _ in range(3)]
        assert bench.settled(begun)["status"] == "live"
        assert set(labels) <= {"one", "two"}
        assert bench.label() == "two"
        bench.artifacts["broken"] = bench.push(broken(tmp_path))
        failed = bench.made("broken", strategy="in_place")
        assert failed["status"] == "failed"
        assert bench.label() == "two"
        assert bench.roll_back().raise_for_status().json()["status"] in ("preparing", "live")
        assert bench.settled(bench.version(bench.first))["status"] == "live"
        assert bench.label() == "one"


def test_a_killed_server_goes_on(tmp_path: Path) -> None:
    """A killed server continues the rollouts of four versions, each at a different stage."""
    settings = {"STOKER_JOB_LEASE_S": "2"}
    with running(tmp_path / "data", **settings) as server, server.account() as client:
        benches = [Bench(client, tmp_path / name, readiness="hot") for name in "abcd"]
        for bench in benches:
            bench.label()
        for name in ("two", "one"):
            begun: list[dict[str, Any]] = []
            for number, bench in enumerate(benches):
                time.sleep(0.15 * number)
                begun.append(bench.begun(name))
            server.kill()
            server.restart()
            server.wait_ready()
            for bench, version in zip(benches, begun, strict=True):
                assert bench.settled(bench.version(version["id"]))["status"] == "live"
                assert bench.label() == name
                live = [row["id"] for row in bench.versions() if row["status"] == "live"]
                assert live == [version["id"]] == [bench.found()["version_id"]]
