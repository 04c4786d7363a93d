"""A journal on a real database, with runs to write."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, event

from stoker.base.ids import Prefix, new_id
from stoker.platform.sealing import Sealer, new_key
from stoker.store import db
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Agent, Run, RunEvent
from stoker.workloads.agents import repository
from stoker.workloads.agents.events import JournalEvent
from stoker.workloads.agents.followers import Followers
from stoker.workloads.agents.journal import Journal, JournalWriter
from stoker.workloads.agents.work import read

TOKEN = "of the holder"


class Lab:
    """Journal on a database, with helpers that create runs to write."""

    def __init__(self, database: Database, secret: ServerSecret) -> None:
        self.database = database
        self.secret = secret
        self.followers = Followers()
        self.journal = Journal(database, self.followers)

    async def run(self, **fields: Any) -> Run:
        values: dict[str, Any] = {
            "id": new_id(Prefix.RUN),
            "account_id": "acct_runs",
            "agent_id": "agent_runs",
            "api_key": "key_runs",
            "deployment_id": "dep_1",
            "model": "chat",
            "content_key": new_key(self.secret),
            "asked": b"",
            "status": "in_progress",
            "progress": 0.0,
            "tries": 1,
            "losses": 0,
            "lock_token": TOKEN,
            "created_at": db.now(),
        }
        row = Run(**values | fields)
        async with self.database.transaction() as session:
            session.add(row)
        return row

    def writer(self, row: Run, last: int = 0) -> JournalWriter:
        return self.journal.writer(row, self.sealer(row), last)

    def sealer(self, row: Run) -> Sealer:
        return Sealer(self.secret, row.content_key)

    async def events(self, row: Run) -> list[JournalEvent]:
        async with self.database.reading() as session:
            page = await repository.events(session, row.id, after=0, limit=10_000)
        return read(self.sealer(row), page.rows)

    async def row(self, run_id: str) -> Run | None:
        async with self.database.reading() as session:
            return await session.get(Run, run_id)


@pytest.fixture
async def lab(migrated: Database, tmp_path: Path) -> AsyncIterator[Lab]:
    async with migrated.transaction() as session:
        for table in (RunEvent, Run, Agent):
            await session.execute(delete(table))
        if await session.get(Account, "acct_runs") is None:
            session.add(Account(id="acct_runs", name="runs", created_at=db.now()))
            await session.flush()
        session.add(
            Agent(
                id="agent_runs",
                account_id="acct_runs",
                name="a",
                model="chat",
                tools=[],
                max_steps=1,
                config={},
                created_at=db.now(),
                updated_at=db.now(),
            )
        )
    lab = Lab(migrated, ServerSecret(tmp_path))
    task = asyncio.create_task(lab.journal.run())
    yield lab
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def counted_commits(database: Database) -> Any:
    commits: list[None] = []

    def note(_connection: Any) -> None:
        commits.append(None)

    event.listen(database.engine.sync_engine, "commit", note)
    try:
        yield commits
    finally:
        event.remove(database.engine.sync_engine, "commit", note)
