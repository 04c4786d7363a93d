"""Calls of others go first between two passes of a trial."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.base.errors import NotFoundError
from stoker.workloads.evaluation.trials import measuring
from stoker.workloads.evaluation.trials.measuring import TrialConfiguration


class World:
    """Runtime in which other deployments are busy for a number of polls, then idle."""

    def __init__(self, looks: float, *, is_wanted: bool = True) -> None:
        self.looks = looks
        self.way: Any = TrialConfiguration.__new__(TrialConfiguration)
        self.way._spec = SimpleNamespace(id="dep_own")
        self.way._runtime = self
        self.way._subject = SimpleNamespace(still_wanted=lambda: is_wanted)

    def at_work(self, besides: str) -> bool:
        assert besides == "dep_own"
        self.looks -= 1
        return self.looks >= 0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_LOOK_S", 0.001)


async def test_it_waits_for_others() -> None:
    world = World(looks=5)
    await world.way._give_way()
    assert world.looks == -1


async def test_it_waits_while_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "GIVE_WAY_S", 600.0)
    world = World(looks=float("inf"))
    waiting = asyncio.create_task(world.way._give_way())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    world.looks = 0
    await waiting


async def test_a_server_that_is_always_busy_measures_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "GIVE_WAY_S", 0.02)
    await World(looks=float("inf")).way._give_way()


async def test_nobody_wants_to_know_any_more() -> None:
    with pytest.raises(NotFoundError):
        await World(looks=0, is_wanted=False).way._give_way()
