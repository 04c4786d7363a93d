"""Upkeep continues independently of the wall clock."""

from datetime import timedelta
from pathlib import Path

from stoker.base.ids import Prefix, new_id
from stoker.registry.files.service import BLOBS, STRAY_AFTER
from stoker.server.janitor import STRAYS_EVERY_S, Janitor
from stoker.store import db
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
