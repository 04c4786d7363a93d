"""Quotas of accounts on both databases. They are exact even when several callers add at the same
time.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import delete

from stoker.base.config import Settings
from stoker.base.errors import CapacityError, PayloadTooLargeError, RateLimitError, StokerError
from stoker.base.ids import Prefix, new_id
from stoker.platform.quotas import repository
from stoker.platform.quotas.limits import LIMITS, Quota
from stoker.platform.quotas.service import QuotaService
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Agent
from stoker.store.tables.artifacts import Artifact, Upload, UploadFile, UploadPart
from stoker.store.tables.files import File
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.responses import ResponseStatus, StoredResponse

ONE, OTHER = "acct_one", "acct_other"
GIB = 1 << 30


class Disk(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
async def database(migrated: Database) -> Database:
    async with migrated.transaction() as session:
        held = (UploadPart, UploadFile, Upload, Artifact, File, Agent, ApiKey, StoredResponse)
        for table in (*held, Account):
            await session.execute(delete(table))
        for name in (ONE, OTHER):
            session.add(Account(id=name, name=name, quotas={}, created_at=db.now()))
    return migrated


def quotas(tmp_path: Path, **limits: Any) -> QuotaService:
    return QuotaService(Settings(data_dir=tmp_path, **{f"quota_{k}": v for k, v in limits.items()}))


def agent(account: str) -> Agent:
    return Agent(
        id=new_id(Prefix.AGENT),
        account_id=account,
        name="a",
        model="m",
        tools=[],
        max_steps=1,
        config={},
        created_at=db.now(),
        updated_at=db.now(),
    )


def response(account: str, stored: int, events: int) -> StoredResponse:
    return StoredResponse(
        id=new_id(Prefix.FILE),
        account_id=account,
        deployment_id="dep_1",
        api_key="key",
        model="m",
        is_background=True,
        content_key=b"",
        request=b"",
        answer=b"",
        stored_bytes=stored,
        event_bytes=events,
        status=ResponseStatus.COMPLETED.value,
        progress=0.0,
        tries=0,
        losses=0,
        created_at=db.now(),
    )


async def add(database: Database, limits: QuotaService, account: str = ONE) -> bool:
    """Adds an agent. Returns False if the quota has no room for it."""
    try:
        async with database.transaction() as session:
            await limits.take(session, account, Quota.AGENTS)
            session.add(agent(account))
    except RateLimitError:
        return False
    return True


async def error_of(work: Awaitable[object]) -> StokerError:
    with pytest.raises(StokerError) as caught:
        await work
    return caught.value


async def on(database: Database, work: Callable[[Session], Awaitable[Any]]) -> Any:
    async with database.transaction() as session:
        return await work(session)


class TestTake:
    async def test_m1_no_more_than_the_limit_however_many_ask_at_once(
        self, database: Database, tmp_path: Path
    ):
        servers = 1 if database.is_sqlite else 3
        limits = [quotas(tmp_path, agents=7) for _ in range(servers)]
        added = await asyncio.gather(*(add(database, limits[at % servers]) for at in range(30)))
        assert sum(added) == 7
        async with database.reading() as session:
            assert await repository.used(session, Quota.AGENTS, ONE) == 7

    async def test_m1_another_account_has_its_own(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, agents=2)
        assert [await add(database, limits) for _ in range(3)] == [True, True, False]
        assert await add(database, limits, OTHER)

    async def test_what_was_deleted_makes_room(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, agents=2)
        assert [await add(database, limits) for _ in range(3)] == [True, True, False]
        async with database.transaction() as session:
            await session.execute(delete(Agent))
        assert [await add(database, limits) for _ in range(3)] == [True, True, False]

    async def test_is_told_with_the_numbers(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, agents=1)
        await add(database, limits)
        error = await error_of(
            on(database, lambda session: limits.take(session, ONE, Quota.AGENTS, 2))
        )
        assert (error.status, error.code) == (429, "quota_exceeded")
        assert "may have 1 agents (quota 'agents'); it has 1 and asks for 2 more" in error.message
        assert error.headers == {"x-should-retry": "false"}
        assert limits.refused == {Quota.AGENTS: 1}

    async def test_what_an_operator_has_set_counts(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, agents=1)
        assert [await add(database, limits) for _ in range(2)] == [True, False]
        for account_quotas, added in (
            ({"agents": 3}, [True, True, False]),
            ({"agents": 0}, [True] * 5),
        ):
            async with database.transaction() as session:
                (await session.get_one(Account, ONE)).quotas = account_quotas
            assert [await add(database, limits) for _ in added] == added

    async def test_zero_is_no_limit(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, agents=0)
        assert all([await add(database, limits) for _ in range(5)])

    async def test_what_failed_takes_nothing_for_ever(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, agents=3)

        async def fail(session: Session) -> None:
            await limits.take(session, ONE, Quota.AGENTS)
            raise ValueError("something else")

        for _ in range(5):
            with pytest.raises(ValueError, match="something else"):
                await on(database, fail)
        assert [await add(database, limits) for _ in range(4)] == [True, True, True, False]

    async def test_operators_keys_are_nobodys(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, keys=1)
        async with database.transaction() as session:
            for _ in range(3):
                await limits.take(session, None, Quota.KEYS)


class TestStorage:
    async def upload(
        self, session: Session, account: str, declared: int | None, **files: tuple[int | None, int]
    ) -> None:
        """Adds an artifact with an open upload session.

        Args:
            files: the declared size and the received bytes of each file.
        """
        artifact, now = new_id(Prefix.ARTIFACT), db.now()
        upload = new_id(Prefix.UPLOAD)
        session.add(
            Artifact(
                id=artifact,
                account_id=account,
                display_name="a",
                status="uploading",
                size_bytes=100,
                created_at=now,
                updated_at=now,
            )
        )
        await session.flush()
        session.add(
            Upload(
                id=upload,
                artifact_id=artifact,
                status="open",
                part_size=10,
                declared_bytes=declared,
                created_at=now,
                expires_at=now,
            )
        )
        await session.flush()
        for path, (size, received) in files.items():
            session.add(UploadFile(upload_id=upload, path=path, blob_key=path, size=size))
            for number in range(received // 10):
                session.add(
                    UploadPart(
                        upload_id=upload, path=path, number=number + 1, size=10, sha256=b"x" * 32
                    )
                )
        await session.flush()

    async def used(self, database: Database, account: str = ONE) -> int:
        async with database.reading() as session:
            used_bytes = await repository.used(session, Quota.STORAGE_BYTES, account)
            everybody = await repository.used_by_all(session, Quota.STORAGE_BYTES)
            assert everybody.get(account, 0) == used_bytes
            return used_bytes

    async def test_m1_open_sessions_count_with_what_they_declared(self, database: Database):
        await on(
            database, lambda session: self.upload(session, ONE, 1000, a=(300, 20), b=(None, 50))
        )
        assert await self.used(database) == 100 + 1000
        assert await self.used(database, OTHER) == 0

    async def test_m1_or_with_what_they_have_been_told_or_received(self, database: Database):
        await on(
            database, lambda session: self.upload(session, ONE, None, a=(300, 20), b=(None, 50))
        )
        await on(database, lambda session: self.upload(session, ONE, 10, c=(None, 40)))
        await on(database, lambda session: self.upload(session, OTHER, None))
        assert await self.used(database) == (100 + 300 + 50) + (100 + 40)
        assert await self.used(database, OTHER) == 100

    async def test_generated_files_count(self, database: Database):
        async with database.transaction() as session:
            for _ in range(2):
                session.add(
                    File(
                        id=new_id(Prefix.FILE),
                        account_id=ONE,
                        deployment_id="dep_1",
                        purpose="image",
                        content_type="image/png",
                        size=7,
                        created_at=db.now(),
                        expires_at=db.now(),
                    )
                )
        assert await self.used(database) == 14

    async def test_stored_responses_count_with_their_events(self, database: Database):
        async with database.transaction() as session:
            session.add_all([response(ONE, 30, 12), response(ONE, 5, 0), response(OTHER, 3, 0)])
        assert await self.used(database) == 47
        assert await self.used(database, OTHER) == 3

    async def test_checked_without_a_reservation(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, storage_gib=200 / GIB)
        async with database.transaction() as session:
            session.add(response(ONE, 100, 50))
        async with database.reading() as session:
            for _ in range(2):
                await limits.check_storage(session, ONE, 50)
            error = await error_of(limits.check_storage(session, ONE, 51))
        assert (error.status, error.code) == (413, "quota_exceeded")
        assert "it has 150 and asks for 51 more" in error.message
        assert limits.refused[Quota.STORAGE_BYTES] == 1

    async def test_a_check_trusts_a_recent_count(self, database: Database, tmp_path: Path):
        now = 0.0
        limits = QuotaService(Settings(data_dir=tmp_path, quota_storage_gib=20), lambda: now)
        async with database.reading() as session:
            await limits.check_storage(session, ONE, 50)
        async with database.transaction() as session:
            session.add(response(ONE, 20 * GIB, 0))
        async with database.reading() as session:
            await limits.check_storage(session, ONE, 50)
            error = await error_of(limits.check_storage(session, ONE, 10 * GIB + 1))
            now = 11.0
            assert (await error_of(limits.check_storage(session, ONE, 50))).status == 413
        assert error.code == "quota_exceeded"

    async def test_beyond_it_is_too_large(self, database: Database, tmp_path: Path):
        limits = quotas(tmp_path, storage_gib=200 / GIB)
        await on(database, lambda session: self.upload(session, ONE, 50))
        error = await error_of(
            on(database, lambda session: limits.take(session, ONE, Quota.STORAGE_BYTES, 51))
        )
        assert isinstance(error, PayloadTooLargeError)
        assert (error.status, error.code) == (413, "quota_exceeded")
        assert "may have 200 bytes" in error.message
        assert "it has 150 and asks for 51 more" in error.message
        await on(database, lambda session: limits.take(session, ONE, Quota.STORAGE_BYTES, 50))


class TestDisk:
    @pytest.mark.parametrize(
        ("free", "more", "is_refused"),
        [(3, 1, False), (3, 2.5, True), (0.9, 0, True), (1.1, 0, False)],
    )
    def test_m1_a_reserve_is_left(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        free: float,
        more: float,
        is_refused: bool,
    ):
        disk = Disk(100 * GIB, 0, int(free * GIB))
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: disk)
        limits = quotas(tmp_path)
        if not is_refused:
            limits.check_disk(int(more * GIB))
            return
        with pytest.raises(CapacityError) as caught:
            limits.check_disk(int(more * GIB))
        assert caught.value.code == "insufficient_storage"
        assert f"has {disk.free} bytes left, of which {GIB} stay free" in caught.value.message

    def test_a_small_disk_keeps_a_twentieth(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: Disk(2 * GIB, 0, GIB // 5))
        quotas(tmp_path).check_disk(GIB // 20)


def test_every_limit_has_a_setting_and_a_count(tmp_path: Path):
    assert set(LIMITS) == set(Quota)
    limits = {f"quota_{name}": 5 for name in Quota if name is not Quota.STORAGE_BYTES}
    settings = Settings(data_dir=tmp_path, quota_storage_gib=5 / GIB, **limits)
    assert set(QuotaService(settings).limits({}).values()) == {5}
