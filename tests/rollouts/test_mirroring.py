"""Mirrored calls are counted and delay no caller."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.base.config import Settings
from stoker.base.errors import CapacityError
from stoker.base.fairness import CURRENT_CALLER
from stoker.inference.calls import Calls
from stoker.registry.deployments.directory import Directory, DirectoryEntry, VersionShare
from stoker.runtime.interface import Call
from stoker.store import db
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.evaluation.replay.comparison import Comparison
from stoker.workloads.rollouts import mirroring
from stoker.workloads.rollouts.comparisons import EXAMPLES
from stoker.workloads.rollouts.mirroring import MOST, SHOWN, Mirrors
from stoker.workloads.rollouts.tally import ComparisonTally
from tests.artifacts.support import eventually
from tests.deployments.support import TEXT, check_error
from tests.rollouts.test_versions import Bench, bench, client
from tests.support.server import running

__all__ = ["bench", "client"]

CALL = Call(task="fill-mask", items=["a"], parameters={}, single=True)


def entry(
    *mirrors: VersionShare, keeps_examples: bool = False, account: str = "acct_1"
) -> DirectoryEntry:
    return DirectoryEntry(
        deployment_id="dep_1",
        version_id="ver_1",
        account_id=account,
        model="m",
        pipeline="fill-mask",
        readiness="cold",
        source="upl_1",
        created_at=db.now(),
        mirrors=mirrors,
        keeps_examples=keeps_examples,
    )


class Runtime:
    """Runtime that answers or fails, and that is busy or idle."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = b"[]"
        self.is_busy = False
        self.asked: list[str] = []
        self.copies: list[bool] = []

    def at_work(self, besides: str) -> bool:
        return self.is_busy

    async def call(self, version_id: str, call: Call, **_: Any) -> bytes:
        self.asked.append(version_id)
        self.copies.append(CURRENT_CALLER.get().is_copy)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def stream(self, version_id: str, call: Call, **_: Any) -> AsyncGenerator[bytes]:
        answer = await self.call(version_id, call)
        for at in range(0, len(answer), 7):
            yield answer[at : at + 7]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator["VideoJob"]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    await database.migrate()
    yield VideoJob(database, ServerSecret(tmp_path))
    await database.close()


class VideoJob:
    """Builds the mirrors of successive servers on one database without versions."""

    def __init__(self, database: Database, secret: ServerSecret) -> None:
        self.database = database
        self.secret = secret

    def __call__(self, runtime: Any, draw: int = 0) -> Mirrors:
        unused: dict[str, Any] = dict.fromkeys(
            ("quotas", "blobs", "media", "inspectors", "credits")
        )
        calls = Calls(
            **unused,
            settings=Settings(),
            database=self.database,
            secret=self.secret,
            runtime=runtime,
            directory=Directory(),
        )
        return Mirrors(calls, Comparer(), draw=lambda: draw)


async def settled(mirrors: Mirrors) -> None:
    """Runs all waiting copies and waits until their results are counted."""
    ended, repeat = asyncio.Semaphore(0), mirrors._repeat

    async def repeated(copy: Any) -> None:
        try:
            await repeat(copy)
        finally:
            ended.release()

    mirrors._repeat = repeated
    waiting = len(mirrors._queue)
    task = asyncio.create_task(mirrors.run())
    async with asyncio.timeout(60):
        for _ in range(waiting):
            await ended.acquire()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    mirrors._repeat = repeat


async def test_as_often_as_is_wanted(made: VideoJob) -> None:
    runtime = Runtime()
    for draw, count in ((0, 1), (24, 1), (25, 0), (99, 0)):
        mirrors = made(runtime, draw)
        mirrors.offer(entry(VersionShare("ver_2", 25)), "ver_1", CALL, b"[]", 0.5)
        await settled(mirrors)
        assert (await mirrors.found("ver_2", "ver_1")).tally.mirror.calls == count
    mirrors = made(runtime)
    # The version that answered receives no copy.
    mirrors.offer(entry(VersionShare("ver_2", 100)), "ver_2", CALL, b"[]", 0.5)
    await settled(mirrors)
    assert runtime.asked == ["ver_2", "ver_2"]
    assert runtime.copies == [True, True]


async def test_failures_and_what_has_no_moment(
    made: VideoJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime()
    mirrors = made(runtime)
    runtime.answer = CapacityError("no")
    mirrors.offer(entry(VersionShare("ver_2", 100)), "ver_1", CALL, b"[]", 0.5)
    await settled(mirrors)
    tally = (await mirrors.found("ver_2", "ver_1")).tally
    assert (tally.failed, tally.mirror.calls, tally.live.calls) == (1, 0, 0)
    monkeypatch.setattr(mirroring, "GIVE_WAY_S", 0.05)
    runtime.is_busy = True
    mirrors.offer(entry(VersionShare("ver_2", 100)), "ver_1", CALL, b"[]", 0.5)
    await settled(mirrors)
    assert (await mirrors.found("ver_2", "ver_1")).tally.dropped == 1
    for _ in range(MOST + 3):
        mirrors.offer(entry(VersionShare("ver_2", 100)), "ver_1", CALL, b"[]", 0.5)
    assert (await mirrors.found("ver_2", "ver_1")).tally.dropped == 4
    mirrors.forget("ver_2")
    assert (await mirrors.found("ver_2", "ver_1")).tally.dropped == 0


async def test_accounts_share_the_places_and_the_turns(made: VideoJob) -> None:
    runtime = Runtime()
    mirrors = made(runtime)

    async def dropped(version: str) -> int:
        return (await mirrors.found(version, "ver_1")).tally.dropped

    def offer(account: str, version: str) -> None:
        mirrors.offer(entry(VersionShare(version, 100), account=account), "ver_1", CALL, b"[]", 0.5)

    for _ in range(MOST + 3):
        offer("acct_1", "ver_2")
    offer("acct_2", "ver_3")
    offer("acct_2", "ver_3")
    # The account that filled the queue loses places.
    assert (await dropped("ver_2"), await dropped("ver_3")) == (5, 0)
    await settled(mirrors)
    assert runtime.asked[:5] == ["ver_2", "ver_3", "ver_2", "ver_3", "ver_2"]
    assert len(runtime.asked) == MOST
    # An account that arrives later is next.
    for _ in range(MOST):
        offer("acct_1", "ver_2")
    assert (await mirrors._queue.get()).entry.account_id == "acct_1"
    offer("acct_3", "ver_4")
    assert (await mirrors._queue.get()).entry.account_id == "acct_3"
    # With as many accounts as places, each account has one place.
    for number in range(MOST):
        offer(f"acct_{number}", f"ver_{number}")
    assert [await dropped(f"ver_{number}") for number in range(5, MOST)] == [0] * (MOST - 5)
    offer("acct_new", "ver_new")
    assert await dropped("ver_new") == 1


async def test_streams_are_compared_by_their_texts(made: VideoJob) -> None:
    runtime = Runtime()

    def streamed(*parts: str) -> bytes:
        chunks = [
            {"id": "a", "choices": [{"index": 0, "delta": {"content": item}}]} for item in parts
        ]
        return b"".join(b"data: %s\n\n" % json.dumps(item).encode() for item in chunks) + (
            b": keep-alive\n\ndata: [DONE]\n\n"
        )

    mirrors = made(runtime)
    # The same text in different chunks.
    runtime.answer = streamed("hello", " there")
    for text in ("hel", "hal"):
        live = streamed(text, "lo there")
        mirrors.offer(
            entry(VersionShare("ver_2", 100), keeps_examples=True),
            *("ver_1", CALL, live, 0.5),
            is_streamed=True,
        )
    await settled(mirrors)
    comparison = await mirrors.found("ver_2", "ver_1")
    assert (comparison.tally.texts, comparison.tally.equal_texts, comparison.tally.differs) == (
        2,
        1,
        1,
    )
    (example,) = comparison.examples
    assert "hallo there" in example["live"]
    assert "hello there" in example["mirror"]
    assert json.loads(example["request"])["items"] == ["a"]


async def test_the_last_examples_are_kept_and_cut(made: VideoJob) -> None:
    runtime = Runtime()
    runtime.answer = json.dumps({"content": "x" * 3 * SHOWN}).encode()
    mirrors = made(runtime)
    picture = Call(task="fill-mask", items=[b"\x00" * 99], parameters={}, single=True)
    for number in range(EXAMPLES + 3):
        live = json.dumps({"content": str(number)}).encode()
        mirrors.offer(
            entry(VersionShare("ver_2", 100), keeps_examples=True), "ver_1", picture, live, 0.5
        )
    await settled(mirrors)
    examples = (await mirrors.found("ver_2", "ver_1")).examples
    assert [json.loads(example["live"])["content"] for example in examples] == [
        str(number) for number in range(3, EXAMPLES + 3)
    ]
    assert {len(example["mirror"]) for example in examples} == {SHOWN}
    assert "<bytes of 99 bytes>" in examples[0]["request"]


def test_tallies_add_up_and_are_kept() -> None:
    both, whole = [ComparisonTally(), ComparisonTally()], ComparisonTally()
    for number, (live, mirror) in enumerate(
        (([0.0, 1.0], [0.0, 1.0]), ([0.0, 1.0], [1.0, 0.0]), ([1.0, float("nan")], [1.0, 2.0]))
    ):
        comparison = Comparison()
        comparison.add(json.dumps(live).encode(), json.dumps(mirror).encode())
        for tally in (both[number % 2], whole):
            tally.add(comparison)
            tally.mirror.add(number)
            tally.dropped += 1
    restored = [
        ComparisonTally.of(json.loads(json.dumps(part_tally.as_json(), allow_nan=False)))
        for part_tally in both
    ]
    assert restored == both
    restored[0].merge(restored[1])
    assert restored[0] == whole


def test_what_is_counted() -> None:
    tally = ComparisonTally()
    for live, mirror in (
        ([{"label": "a", "score": 0.9}], [{"label": "a", "score": 0.8}]),
        ([{"label": "a", "score": 0.9}], [{"label": "b", "score": 0.9}]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.0, 1.0], [1.0, 0.0]),
        ({"content": "x"}, {"content": "y"}),
    ):
        comparison = Comparison()
        comparison.add(json.dumps(live).encode(), json.dumps(mirror).encode())
        tally.add(comparison)
    assert (tally.labels, tally.equal_labels) == (2, 1)
    assert (tally.cosines, tally.cosine_sum, tally.least_cosine) == (2, 1.0, 0.0)
    assert (tally.texts, tally.equal_texts) == (1, 0)
    assert (tally.differs, tally.difference) == (3, 1.0)


def test_over_http(bench: Bench, client: httpx.Client) -> None:
    bench.label()
    other = bench.made(promote="manual")
    same = bench.made("one", promote="manual")
    body = {
        "weights": {bench.first: 100},
        "mirror": {other["id"]: 100, same["id"]: 100},
    }
    directed = client.put(f"{bench.path}/traffic", json=body).raise_for_status().json()
    assert directed["traffic"]["mirror"] == body["mirror"]
    assert {bench.label() for _ in range(6)} == {"one"}

    def compared(version: dict[str, Any]) -> dict[str, Any]:
        path = f"{bench.path}/versions/{version['id']}/comparison"
        return client.get(path).raise_for_status().json()

    assert eventually(lambda: compared(other)["compared"] == 6 == compared(same)["compared"])
    comparison = compared(same)
    assert (comparison["measure"], comparison["equal_top_labels"]) == ("top_labels", 1.0)
    assert (comparison["failed"], comparison["dropped"], comparison["differing"]) == (0, 0, 0)
    assert comparison["difference"] == pytest.approx(0, abs=1e-4)
    assert comparison["live"]["calls"] == comparison["mirror"]["calls"] == 6
    assert 0 < comparison["mirror"]["mean_ms"] <= comparison["mirror"]["longest_ms"]
    comparison = compared(other)
    assert (comparison["equal_top_labels"], comparison["differing"]) == (0.0, 6)
    # A deleted version stops being a mirror.
    client.delete(f"{bench.path}/versions/{same['id']}").raise_for_status()
    assert bench.found()["traffic"]["mirror"] == {other["id"]: 100}
    # A version that is no longer a mirror receives no more copies.
    client.put(f"{bench.path}/traffic", json={"weights": {bench.first: 100}}).raise_for_status()
    assert bench.found()["traffic"] is None
    bench.label()
    assert compared(other)["compared"] == 6


@pytest.mark.one_machine
def test_kept_across_a_restart_marked_and_billed(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server, server.account("mirrors") as client:
        bench = Bench(client, tmp_path)
        bench.label()
        other = bench.made(promote="manual")
        body = {
            "weights": {bench.first: 100},
            "mirror": {other["id"]: 100},
            "examples": True,
        }
        client.put(f"{bench.path}/traffic", json=body).raise_for_status()
        path = f"{bench.path}/versions/{other['id']}/comparison"

        def compared() -> dict[str, Any]:
            return client.get(path).raise_for_status().json()

        for _ in range(4):
            assert bench.label() == "one"
        assert eventually(lambda: compared()["compared"] == 4)
        before = compared()
        assert len(before["examples"]) == 4
        assert TEXT in before["examples"][0]["request"]
        assert "one-" in before["examples"][0]["live"]
        assert "two-" in before["examples"][0]["mirror"]
        with server.client(server.operator_key) as operator:
            metrics = operator.get("/metrics").text
        counted = [line for line in metrics.splitlines() if line.startswith("stoker_version_req")]
        (copies,) = [line for line in counted if 'mirrored="true"' in line]
        assert other["id"] in copies
        assert copies.endswith(" 4.0")
        server.stop()
        server.restart()
        assert compared() == before
        usage = client.get("/v1/usage", params={"group_by": "version"}).raise_for_status().json()
        rows = {usage_row["version_id"]: usage_row for usage_row in usage["data"]}
        # The first version also answered one call before it had a mirror. The other version also
        # answered its probe.
        assert (rows[bench.first]["requests"], rows[bench.first]["mirrored"]) == (5, 0)
        assert (rows[other["id"]]["requests"], rows[other["id"]]["mirrored"]) == (5, 4)
        for row in (rows[bench.first], rows[other["id"]]):
            assert row["model"] == bench.deployment["model"]
            assert row["deployment_id"] == bench.deployment["id"]
            assert row["memory_mib_ms"] > 0
        sealed = (tmp_path / "data" / "stoker.db").read_bytes()
        assert TEXT.encode() not in sealed
        client.delete(f"{bench.path}/versions/{other['id']}").raise_for_status()


def test_of_one_that_is_none(bench: Bench, client: httpx.Client) -> None:
    body = {"weights": {bench.first: 100}, "mirror": {"ver_nothing": 10}}
    refused = client.put(f"{bench.path}/traffic", json=body)
    check_error(refused, 404, "NotFoundError", "version_not_found", "mirror.ver_nothing")
    assert client.get(f"{bench.path}/versions/ver_nothing/comparison").status_code == 404
