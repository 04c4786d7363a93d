"""What a keyring remembers, on a real database that counts its look-ups."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.errors import InvalidAPIKeyError
from stoker.keys import service
from stoker.keys.keyring import Keyring
from stoker.keys.schemas import KeyCreate
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.keys import ApiKey
from stoker.web.principal import Scope

TTL_S = 10.0


class Counting(Database):
    """Counts what is read; a reader waits as long as it is told to, with its result in hand."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        async with super().reading() as session:
            yield session
        self.reads += 1
        await self.go_on.wait()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Counting]:
    made = Counting(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    await made.migrate()
    yield made
    await made.close()


async def issue(database: Database) -> tuple[ApiKey, str]:
    async with database.transaction() as session:
        key, secret = service.issue(session, None, KeyCreate(scope=Scope.OPERATOR))
    return key, service.whole(key, secret)


async def test_a_key_is_read_once_in_its_time(database: Counting):
    clock = Clock()
    key, token = await issue(database)
    keyring = Keyring(database, TTL_S, clock)
    for clock.now, reads in ((0.0, 1), (9.9, 1), (10.1, 2)):
        assert (await keyring.check(token)).key_id == key.id
        assert database.reads == reads


async def test_requests_that_come_together_share_a_look_up(database: Counting):
    key, token = await issue(database)
    keyring = Keyring(database, TTL_S)
    found = await asyncio.gather(*(keyring.check(token) for _ in range(50)))
    assert {one.key_id for one in found} == {key.id}
    assert database.reads == 1


async def test_one_that_goes_away_leaves_the_others_theirs(database: Counting):
    key, token = await issue(database)
    keyring = Keyring(database, TTL_S)
    database.go_on.clear()
    first, second = (asyncio.create_task(keyring.check(token)) for _ in range(2))
    while not database.reads:
        await asyncio.sleep(0)
    first.cancel()
    database.go_on.set()
    assert (await second).key_id == key.id
    assert first.cancelled()


async def test_a_key_that_is_revoked_while_it_is_read_is_not_kept(database: Counting):
    key, token = await issue(database)
    keyring = Keyring(database, TTL_S)
    database.go_on.clear()
    asked = asyncio.create_task(keyring.check(token))
    while not database.reads:
        await asyncio.sleep(0)
    async with database.transaction() as session:
        found = await session.get(ApiKey, key.id)
        assert found
        found.revoked_at = db.now()
        session.after_commit(lambda: keyring.forget(key.public_id))
    database.go_on.set()
    await asked
    with pytest.raises(InvalidAPIKeyError):
        await keyring.check(token)
