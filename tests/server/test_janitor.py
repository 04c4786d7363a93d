"""Upkeep continues independently of the wall clock, and after a step that fails."""

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.base.ids import Prefix, new_id
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Resources, Upkeep
from stoker.platform.web.context import Platform
from stoker.registry.files.service import BLOBS, STRAY_AFTER
from stoker.server.janitor import STRAYS_AGAIN_S, STRAYS_EVERY_S, Janitor
from stoker.store import db
from stoker.store.blobs import StoreUnavailableError
from tests.support.app import serving


async def test_strays_go_though_the_clock_was_ahead(tmp_path: Path) -> None:
    now = 0.0
    async with serving(tmp_path / "data") as app:
        blobs = app.platform.blobs
        janitor = Janitor(
            app.parts,
            clock=lambda: now,
        )
        await janitor.sweep(db.now() + timedelta(days=365))
        stray = f"{BLOBS}{new_id(Prefix.FILE)}"
        blobs.write(stray, b"of a server that was killed")
        now += STRAYS_EVERY_S
        await janitor.sweep(db.now() + 2 * STRAY_AFTER)
        assert await blobs.keys(BLOBS) == []


async def test_a_step_that_fails_does_not_prevent_the_next_ones(tmp_path: Path) -> None:
    now, steps = 0.0, list[str]()

    async def fail(_parts: ServerParts, _now: datetime) -> None:
        raise ValueError("bad row")

    async def lose_store(_parts: ServerParts, _now: datetime) -> None:
        raise StoreUnavailableError("no answer")

    def step(name: str) -> Any:
        async def run(_parts: ServerParts, _now: datetime) -> None:
            steps.append(name)

        return run

    failing = Resource(name="failing", upkeep=Upkeep(each_server=fail, strays=lose_store))
    names = ("each_server", "shared", "strays", "shared_hourly")
    later = Resource(name="later", upkeep=Upkeep(**{name: step(name) for name in names}))
    async with serving(tmp_path / "data") as app:
        known = {Platform: app.platform, Resources: Resources((failing, later))}
        parts: Any = SimpleNamespace(get=known.__getitem__)
        janitor = Janitor(parts, clock=lambda: now)
        with pytest.raises(ExceptionGroup) as raised:
            await janitor.sweep(db.now())
        (error,) = raised.value.exceptions
        assert isinstance(error, ValueError)
        assert error.__notes__ == ["in the maintenance of failing"]
        assert steps == list(names)
        # The store is listed again earlier than usual.
        now += STRAYS_AGAIN_S
        with pytest.raises(ExceptionGroup):
            await janitor.sweep(db.now())
        assert steps.count("strays") == 2
