"""Database connections: accepted URLs and liveness checks."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from stoker.base.database_urls import without_password
from stoker.cli.settings import read_settings
from stoker.client.errors import StokerError
from stoker.store import postgres
from stoker.store.db import Database
from tests.support import postgres as clusters
from tests.support.server import WITHOUT_MODELS, Server

PID = text("SELECT pg_backend_pid()")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with clusters.running() as cluster:
        yield cluster


class TestUrls:
    @pytest.mark.parametrize(
        ("given", "read"),
        [
            ("postgresql://a:p%40ss@b:1/c", "postgresql+asyncpg://a:p%40ss@b:1/c"),
            ("postgres://b/c?sslmode=require", "postgresql+asyncpg://b/c?sslmode=require"),
            ("postgresql+asyncpg://b/c", "postgresql+asyncpg://b/c"),
            ("sqlite:////a/file", "sqlite+aiosqlite:////a/file"),
            ("sqlite+aiosqlite:////a/file", "sqlite+aiosqlite:////a/file"),
            ("", ""),
        ],
    )
    def test_are_read(self, given: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STOKER_DATABASE_URL", given)
        assert read_settings().database_url == read

    @pytest.mark.parametrize(
        "given", ["mysql://me:hidden@b/c", "postgresql+psycopg://me:hidden@b/c", "me:hidden@b"]
    )
    def test_others_are_refused(self, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STOKER_DATABASE_URL", given)
        with pytest.raises(StokerError, match="must be postgresql://") as caught:
            read_settings()
        assert "hidden" not in str(caught.value)

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            ("postgresql://me:p@ss@b:1/c?password=x", "postgresql://me@b:1/c"),
            ("postgresql://b,c/d?application_name=a@b", "postgresql://b,c/d"),
            ("sqlite+aiosqlite:////a/file", "sqlite+aiosqlite:////a/file"),
        ],
    )
    def test_passwords_are_not_shown(self, given: str, shown: str) -> None:
        assert without_password(given) == shown

    async def test_options_are_libpqs(self, url: str) -> None:
        """URLs accept libpq's options and SQLAlchemy's spelling of `sslmode`."""
        database = Database(f"{url}?ssl=prefer&application_name=a%20name")
        try:
            await database.migrate()
            async with database.reading() as session:
                assert await session.scalar(text("SHOW application_name")) == "a name"
        finally:
            await database.close()

    def test_a_server_without_a_database_says_why(self, url: str, tmp_path: Path) -> None:
        """The server logs the reason in one line. This PostgreSQL does not support TLS."""
        tls_url = f"{url}?sslmode=require"
        server = Server(tmp_path / "data", STOKER_DATABASE_URL=tls_url, **WITHOUT_MODELS)
        with pytest.raises(RuntimeError, match="the server did not start"):
            server.start(timeout=60)
        events = [json.loads(line) for line in server.log.read_text().splitlines()]
        (why,) = [event["why"] for event in events if event["event"] == "server failed to start"]
        assert "rejected SSL upgrade" in why


class TestStillThere:
    @pytest.fixture
    def now(self) -> list[float]:
        return [0.0]

    @pytest.fixture
    async def engine(self, url: str, now: list[float]) -> AsyncIterator[AsyncEngine]:
        """Yields an engine with one used connection."""
        created = postgres.create_engine(url, 1, lambda: now[0])
        await self.pid(created)
        yield created
        await created.dispose()

    @pytest.fixture
    def asked(self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Returns a list that gains one entry per liveness check of a connection."""
        pings, ask = list[bool](), engine.dialect.do_ping
        monkeypatch.setattr(
            engine.dialect, "do_ping", lambda connection: pings.append(True) or ask(connection)
        )
        return pings

    @staticmethod
    async def pid(engine: AsyncEngine) -> int:
        async with engine.begin() as connection:
            return (await connection.execute(PID)).scalar_one()

    async def test_who_was_used_lately_is_not_asked(
        self, engine: AsyncEngine, now: list[float], asked: list[bool]
    ) -> None:
        first = await self.pid(engine)
        now[0] += postgres.TRUST_S
        assert (await self.pid(engine), asked) == (first, [])
        now[0] += postgres.TRUST_S + 1
        assert (await self.pid(engine), asked) == (first, [True])

    async def test_who_was_closed_is_replaced(
        self, engine: AsyncEngine, url: str, asked: list[bool]
    ) -> None:
        first = await self.pid(engine)
        other = Database(url)
        async with other.transaction() as session:
            await session.execute(text(f"SELECT pg_terminate_backend({first}, 5000)"))
        await other.close()
        # Waits for the notice of the termination to arrive.
        await asyncio.sleep(0.1)
        assert await self.pid(engine) != first
        assert not asked

    async def test_who_does_not_answer_is_replaced(
        self, engine: AsyncEngine, now: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = await self.pid(engine)
        now[0] += postgres.TRUST_S + 1

        def silent(_: object) -> bool:
            raise TimeoutError

        monkeypatch.setattr(engine.dialect, "do_ping", silent)
        second = await self.pid(engine)
        assert second != first
        assert await self.pid(engine) == second
