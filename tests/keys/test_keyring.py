"""A keyring's cache, on a real database that counts its look-ups."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event

from stoker.base.errors import InvalidAPIKeyError
from stoker.platform.web.principal import Scope
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.keys import ApiKey
from stoker.tenancy.keys import keyring as keyring_module
from stoker.tenancy.keys import service
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.schemas import KeyCreate

TTL_S = 10.0


class Counting(Database):
    """A database that counts reads. Each reader waits with its result until the test continues
    it.
    """

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
    principals = await asyncio.gather(*(keyring.check(token) for _ in range(50)))
    assert {principal.key_id for principal in principals} == {key.id}
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
    check_task = asyncio.create_task(keyring.check(token))
    while not database.reads:
        await asyncio.sleep(0)
    async with database.transaction() as session:
        row = await session.get(ApiKey, key.id)
        assert row
        row.revoked_at = db.now()
        session.after_commit(lambda: keyring.forget(key.public_id))
    database.go_on.set()
    await check_task
    with pytest.raises(InvalidAPIKeyError):
        await keyring.check(token)


class TestL3:
    """The cost of a refusal does not reveal its cause."""

    async def steps(
        self, database: Counting, monkeypatch: pytest.MonkeyPatch, token: str
    ) -> tuple[int, int, int]:
        """Returns the numbers of look-ups, comparisons and created entries for a refused token."""
        compared = made = 0

        def compare(known: bytes, presented: bytes) -> bool:
            nonlocal compared
            compared += 1
            return hmac.compare_digest(known, presented)

        def make(*given: Any) -> Any:
            nonlocal made
            made += 1
            return entry(*given)

        entry, before = keyring_module._entry, database.reads
        with monkeypatch.context() as patch:
            patch.setattr(keyring_module, "hmac", SimpleNamespace(compare_digest=compare))
            patch.setattr(keyring_module, "_entry", make)
            with pytest.raises(InvalidAPIKeyError):
                await Keyring(database, TTL_S).check(token)
        return database.reads - before, compared, made

    async def test_l3_every_refusal_takes_the_same_steps(
        self, database: Counting, monkeypatch: pytest.MonkeyPatch
    ):
        _, token = await issue(database)
        revoked, gone = await issue(database)
        async with database.transaction() as session:
            (await session.merge(revoked)).revoked_at = db.now()
        _, public_id, secret = token.split("-", 2)
        tokens = {
            "wrong secret": f"sk-{public_id}-{secret[::-1]}",
            "unknown": f"sk-{'0' * 16}-{secret}",
            "revoked": gone,
            "malformed": "nonsense",
            "none": "",
        }
        steps = {
            why: await self.steps(database, monkeypatch, refused_token)
            for why, refused_token in tokens.items()
        }
        assert set(steps.values()) == {(1, 2, 1)}, steps

    async def test_l3_no_object_is_made_of_a_row(
        self, database: Counting, monkeypatch: pytest.MonkeyPatch
    ):
        """Creating an object from a row took longer than all other differences between known and
        unknown ids.
        """
        _, token = await issue(database)
        loaded: list[object] = []
        event.listen(ApiKey, "load", lambda target, _context: loaded.append(target))
        await Keyring(database, TTL_S).check(token)
        assert loaded == []

    @pytest.mark.parametrize("verdict", [True, False])
    async def test_l3_the_comparison_of_constant_time_decides(
        self, database: Counting, monkeypatch: pytest.MonkeyPatch, verdict: bool
    ):
        """A comparison by `==` anywhere would accept or refuse keys that this comparison does
        not.
        """
        _, token = await issue(database)
        wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
        compare = SimpleNamespace(compare_digest=lambda _known, _presented: verdict)
        monkeypatch.setattr(keyring_module, "hmac", compare)
        for presented in (token, wrong):
            keyring = Keyring(database, TTL_S)
            # First from the database, then from the cache.
            for _ in range(2):
                if verdict:
                    assert (await keyring.check(presented)).scope is Scope.OPERATOR
                else:
                    with pytest.raises(InvalidAPIKeyError):
                        await keyring.check(presented)

    async def test_l3_nothing_else_compares_digests(
        self, database: Counting, monkeypatch: pytest.MonkeyPatch
    ):
        class Digest(bytes):
            __hash__ = None  # type: ignore[assignment]

            def __eq__(self, other: object) -> bool:
                raise AssertionError("compared byte by byte")

            __ne__ = __eq__

        plain = keyring_module.digest
        monkeypatch.setattr(keyring_module, "digest", lambda secret: Digest(plain(secret)))
        _, token = await issue(database)
        keyring = Keyring(database, TTL_S)
        for _ in range(2):
            assert (await keyring.check(token)).scope is Scope.OPERATOR
            with pytest.raises(InvalidAPIKeyError):
                await keyring.check(token[:-1] + ("a" if token[-1] != "a" else "b"))
