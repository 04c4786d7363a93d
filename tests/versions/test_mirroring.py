"""Copies of calls: what is counted of them, and that nobody waits for them."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from stoker.asking.comparison import Comparison
from stoker.deployments.directory import Entry, Share
from stoker.errors import CapacityError
from stoker.runtime.interface import Call
from stoker.store import db
from stoker.versions import mirroring
from stoker.versions.mirroring import MOST, Mirrors, Tally
from tests.artifacts.support import eventually
from tests.deployments.support import check_error
from tests.versions.test_versions import Bench, bench, client

__all__ = ["bench", "client"]

CALL = Call(task="fill-mask", items=["a"], parameters={}, single=True)


def entry(*mirrors: Share) -> Entry:
    return Entry(
        deployment_id="dep_1",
        version_id="ver_1",
        account_id="acct_1",
        model="m",
        pipeline="fill-mask",
        readiness="cold",
        source="upl_1",
        created_at=db.now(),
        mirrors=mirrors,
    )


class Runtime:
    """Answers, or fails, while others are at work or not."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = b"[]"
        self.is_busy = False
        self.asked: list[str] = []

    def at_work(self, besides: str) -> bool:
        return self.is_busy

    async def call(self, version_id: str, call: Call, **_: float) -> bytes:
        self.asked.append(version_id)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def settled(mirrors: Mirrors) -> None:
    task = asyncio.create_task(mirrors.run())
    while not mirrors._queue.empty():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()


def mirrors_of(runtime: Any, draw: int = 0) -> Mirrors:
    return Mirrors(runtime, wait_s=1, timeout_s=1, draw=lambda: draw)


async def test_as_often_as_is_wanted() -> None:
    runtime = Runtime()
    for draw, count in ((0, 1), (24, 1), (25, 0), (99, 0)):
        mirrors = mirrors_of(runtime, draw)
        mirrors.offer(entry(Share("ver_2", 25)), "ver_1", CALL, b"[]", 0.5)
        await settled(mirrors)
        assert mirrors.found("ver_2", "ver_1").mirror.calls == count
    mirrors = mirrors_of(runtime)
    # What has answered is not asked again.
    mirrors.offer(entry(Share("ver_2", 100)), "ver_2", CALL, b"[]", 0.5)
    await settled(mirrors)
    assert runtime.asked == ["ver_2", "ver_2"]


async def test_failures_and_what_has_no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    mirrors = mirrors_of(runtime)
    runtime.answer = CapacityError("no")
    mirrors.offer(entry(Share("ver_2", 100)), "ver_1", CALL, b"[]", 0.5)
    await settled(mirrors)
    found = mirrors.found("ver_2", "ver_1")
    assert (found.failed, found.mirror.calls, found.live.calls) == (1, 0, 0)
    monkeypatch.setattr(mirroring, "GIVE_WAY_S", 0.05)
    runtime.is_busy = True
    mirrors.offer(entry(Share("ver_2", 100)), "ver_1", CALL, b"[]", 0.5)
    await settled(mirrors)
    assert mirrors.found("ver_2", "ver_1").dropped == 1
    for _ in range(MOST + 3):
        mirrors.offer(entry(Share("ver_2", 100)), "ver_1", CALL, b"[]", 0.5)
    assert mirrors.found("ver_2", "ver_1").dropped == 4
    mirrors.forget("ver_2")
    assert mirrors.found("ver_2", "ver_1").dropped == 0


def test_what_is_counted() -> None:
    tally = Tally()
    for live, mirror in (
        ([{"label": "a", "score": 0.9}], [{"label": "a", "score": 0.8}]),
        ([{"label": "a", "score": 0.9}], [{"label": "b", "score": 0.9}]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.0, 1.0], [1.0, 0.0]),
        ({"content": "x"}, {"content": "y"}),
    ):
        found = Comparison()
        found.add(json.dumps(live).encode(), json.dumps(mirror).encode())
        tally.add(found)
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
    found = compared(same)
    assert (found["measure"], found["equal_top_labels"]) == ("top_labels", 1.0)
    assert (found["failed"], found["dropped"], found["differing"]) == (0, 0, 0)
    assert found["difference"] == pytest.approx(0, abs=1e-4)
    assert found["live"]["calls"] == found["mirror"]["calls"] == 6
    assert 0 < found["mirror"]["mean_ms"] <= found["mirror"]["longest_ms"]
    found = compared(other)
    assert (found["equal_top_labels"], found["differing"]) == (0.0, 6)
    # One that is deleted is none any more.
    client.delete(f"{bench.path}/versions/{same['id']}").raise_for_status()
    assert bench.found()["traffic"]["mirror"] == {other["id"]: 100}
    # No more, once it is none.
    client.put(f"{bench.path}/traffic", json={"weights": {bench.first: 100}}).raise_for_status()
    assert bench.found()["traffic"] is None
    bench.label()
    assert compared(other)["compared"] == 6


def test_of_one_that_is_none(bench: Bench, client: httpx.Client) -> None:
    body = {"weights": {bench.first: 100}, "mirror": {"ver_nothing": 10}}
    refused = client.put(f"{bench.path}/traffic", json=body)
    check_error(refused, 404, "NotFoundError", "version_not_found", "mirror.ver_nothing")
    assert client.get(f"{bench.path}/versions/ver_nothing/comparison").status_code == 404
