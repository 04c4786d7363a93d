"""Usage that several servers consume, meter and report."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, text

from stoker.store.db import Database
from stoker.store.servers import Servers
from stoker.store.tables.accounts import Account
from stoker.store.tables.usage import Holding, Kind
from stoker.tenancy.usage.balances import CreditCheck
from stoker.tenancy.usage.counts import Counts
from stoker.tenancy.usage.metering import Metering
from tests.deployments.support import DEPLOYMENTS, TOKENS, check_error
from tests.support.app import App, serving
from tests.support.machines import NER

CREDITS = 1000
MICRO = 1_000_000


@pytest.fixture(scope="module")
async def apps(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[App, App]]:
    """Yields two apps in this process. Their meters tick only when the test triggers it."""
    root: Path = tmp_path_factory.mktemp("usage")
    settings = {"database_url": postgres_url, "source_dirs": [NER], "starting_credits": CREDITS}
    async with serving(root / "a", **settings) as a, serving(root / "b", **settings) as b:
        yield a, b


def on(app: App, other: httpx.AsyncClient) -> httpx.AsyncClient:
    return app.client(other.headers["authorization"].removeprefix("Bearer "))


class TestCredits:
    async def test_what_one_has_charged_is_known_to_the_other_after_a_tick(
        self, apps: tuple[App, App]
    ) -> None:
        """A charge on one server is known to the other after a tick. Ticks occur every ten
        seconds.
        """
        a, b = apps
        client = await a.account("spent")
        on_b = on(b, client)
        correction = {
            "amount_microcredits": -CREDITS * MICRO,
            "correction": True,
            "note": "all of it",
        }
        async with a.client(a.operator_key) as operator:
            path = f"/v1/accounts/{client.account_id}/credits"
            (await operator.post(path, json=correction)).raise_for_status()
        body = {"model": "m", "source": str(NER)}
        refused = await client.post(DEPLOYMENTS, json=body)
        check_error(refused, 402, "InsufficientCreditsError", "insufficient_credits")
        await b.parts.get(Metering).tick()
        refused = await on_b.post(DEPLOYMENTS, json=body)
        check_error(refused, 402, "InsufficientCreditsError", "insufficient_credits")
        refused = await on_b.post(TOKENS, json={"model": "m", "inputs": "Ada"})
        check_error(refused, 402, "InsufficientCreditsError", "insufficient_credits")


class TestStorage:
    async def test_one_of_them_advances_it(self, apps: tuple[App, App]) -> None:
        a, b = (app.parts.get(Servers) for app in apps)
        await a.beat()
        await b.beat()
        await a.beat()
        assert [a.is_first, b.is_first] == [True, False]

    async def test_however_many_think_that_they_are_the_first(self, apps: tuple[App, App]) -> None:
        """Concurrent ticks of servers that all consider themselves first count an artifact's
        storage once.
        """
        from tests.artifacts.support import ARTIFACTS

        a, b = apps
        client = await a.account("stored")
        artifact = await client.post(ARTIFACTS, json={"display_name": "m"})
        artifact_id = artifact.raise_for_status().json()["id"]
        uploads = f"{ARTIFACTS}/{artifact_id}/uploads"
        opened = (await client.post(uploads)).json()["upload_id"]
        for path in sorted(NER.iterdir()):
            if path.is_file():
                url = f"{uploads}/{opened}/files/{path.name}"
                (await client.put(url, content=path.read_bytes())).raise_for_status()
        done = await client.post(f"{uploads}/{opened}/complete")
        assert done.json()["artifact"]["status"] == "ready", done.text
        meters = [self.metering(app, minutes) for minutes in (61, 125) for app in (a, b)]
        for at in (0, 2):
            await asyncio.gather(*(item.tick() for item in meters[at : at + 2]))
        async with b.platform.database.reading() as session:
            rows = await session.execute(
                select(Holding.hour, func.count())
                .where(Holding.subject_id == artifact_id, Holding.kind == Kind.STORAGE.value)
                .group_by(Holding.hour)
            )
            hours = {row[0]: row[1] for row in rows}
            holdings = (
                await session.scalars(
                    select(Holding).where(Holding.subject_id == artifact_id).order_by(Holding.hour)
                )
            ).all()
        assert set(hours.values()) == {1}
        # The periods have no gaps and no overlaps.
        assert [item.started_ms for item in holdings[1:]] == [
            item.ended_ms for item in holdings[:-1]
        ]
        sizes = {item.mib_ms / (item.ended_ms - item.started_ms) for item in holdings}
        assert len(sizes) == 1

    @staticmethod
    def metering(app: App, minutes: int) -> Metering:
        import time

        wall = time.time_ns() // 1_000_000 + minutes * 60_000
        return Metering(
            app.platform.database,
            app.platform.runtime.meter,
            app.parts.get(CreditCheck),
            app.parts.get(Counts),
            starting_credits=CREDITS,
            wall_ms=lambda: wall,
        )


async def test_what_a_reader_asks_for_is_of_one_moment(migrated: Database) -> None:
    async with migrated.reading() as session:
        count = await session.scalar(select(func.count()).select_from(Account))
        async with migrated.transaction() as other:
            other.add(Account(id=f"acct_{count}_moment", name="later", created_at=_now()))
        assert await session.scalar(select(func.count()).select_from(Account)) == count
    async with migrated.reading() as session:
        assert await session.scalar(select(func.count()).select_from(Account)) == count + 1
        await session.execute(text("SELECT 1"))


def _now():
    from stoker.store import db

    return db.now()
