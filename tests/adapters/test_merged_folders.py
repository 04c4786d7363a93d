"""Folders of merged adapters. They count as storage while they exist and are removed once they are
idle.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.base.errors import CapacityError
from stoker.platform.quotas.service import QuotaService
from stoker.registry.deployments.merged_folders import MergedFolders
from stoker.runtime.interface import LoadError
from stoker.store.db import Database
from tests.runtime.pool.world import SPEC, Clock

IDLE_S = 900.0


class Disk:
    """Replacement for `Merges` that creates a folder if the disk has room."""

    def __init__(self) -> None:
        self.room = 1

    async def merge(
        self, account: str, adapter: Any, base: Any, target: Path, **given: Any
    ) -> None:
        if not self.room:
            raise CapacityError("full", code="insufficient_storage")
        await given["reserve"](100)
        target.mkdir(parents=True)


class World:
    def __init__(self, folder: Path, database: Database) -> None:
        self.clock, self.disk, self.root = Clock(), Disk(), folder / "models"
        self.running: set[str] = set()
        merges: Any = self.disk
        quotas = QuotaService(Settings(data_dir=folder))
        self.folders = MergedFolders(
            self.root, database, quotas, merges, idle_s=IDLE_S, clock=self.clock
        )
        self.folders.runs = self.running.__contains__

    async def make(self, name: str) -> None:
        self.folders.note(f"merged-{name}", SPEC.id)
        options = {"is_single": False, "is_linked": False}
        await self.folders.make(SPEC, {}, self.root, self.root / f"merged-{name}", **options)

    @property
    def names(self) -> set[str]:
        return {path.name.removeprefix("merged-") for path in self.root.iterdir()}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    await database.migrate()
    yield World(tmp_path, database)
    await database.close()


@pytest.mark.case(33)
async def test_they_go_once_nothing_runs_from_them(world: World) -> None:
    await world.make("a")
    world.running.add(SPEC.id)
    world.clock.now += 2 * IDLE_S
    assert not await world.folders.drop_idle()
    world.running.clear()
    world.folders.note("merged-a", SPEC.id)
    world.clock.now += IDLE_S - 1
    assert not await world.folders.drop_idle(), "a start has asked for it"
    world.clock.now += 1
    assert await world.folders.drop_idle()
    assert world.names == set()


@pytest.mark.case(33)
async def test_those_of_before_a_start_are_idle_by_and_by(world: World) -> None:
    (world.root / "merged-old").mkdir(parents=True)
    (world.root / "upl_1").mkdir()
    assert not await world.folders.drop_idle()
    world.clock.now += IDLE_S
    assert await world.folders.drop_idle()
    assert world.names == {"upl_1"}


@pytest.mark.case(33)
async def test_idle_ones_make_room(world: World) -> None:
    await world.make("a")
    world.disk.room = 0
    with pytest.raises(LoadError, match="no room"):
        await world.make("b")
    assert world.names == set()
