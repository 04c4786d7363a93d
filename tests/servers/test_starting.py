"""Servers start on one database and leave it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text, update

from stoker.base.ids import Prefix, new_id
from stoker.registry.artifacts import upkeep
from stoker.server import bootstrap
from stoker.store import db
from stoker.store.blobs import Folder
from stoker.store.db import Database
from stoker.store.secret import FILE, OtherSecretError, ServerSecret
from stoker.store.servers import GONE_AFTER_S, Servers, loaded_elsewhere
from stoker.store.tables.accounts import Account
from stoker.store.tables.artifacts import (
    Artifact,
    ArtifactStatus,
    Upload,
    UploadFile,
    UploadStatus,
)
from stoker.store.tables.servers import Server as ServerRow
from tests.servers.support import Pair
from tests.support.app import serving
from tests.support.databases import counted
from tests.support.server import WITHOUT_MODELS, running


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[list[Database]]:
    """Yields the databases of two servers, without data of other tests."""
    opened = [Database(postgres_url, server_id=f"srv_{name}") for name in "ab"]
    await asyncio.gather(*(database.migrate() for database in opened))
    async with opened[0].transaction() as session:
        await session.execute(text("TRUNCATE servers, shared_secrets, uploads, artifacts CASCADE"))
    yield opened
    for database in opened:
        await database.close()


class TestFirstStarts:
    def test_at_once(self, two: Pair) -> None:
        """Both servers start on an empty database and share one operator key."""
        assert two.a.operator_key == two.b.operator_key
        for server in (two.a, two.b):
            with server.client(two.a.operator_key) as operator:
                accounts = operator.get("/v1/accounts", params={"limit": 100}).json()["data"]
                assert bootstrap.DEFAULT_ACCOUNT not in [account["name"] for account in accounts]
                keys = operator.get("/v1/api-keys").raise_for_status().json()["data"]
                assert [key["name"] for key in keys if key["scope"] == "operator"] == [
                    "first operator"
                ]
            assert not (server.data_dir / FILE).exists()
            assert not (server.data_dir / bootstrap.ACCOUNT_FILE).exists()

    def test_links_of_the_other_are_good(self, two: Pair) -> None:
        """A server unseals data that the other one sealed, such as the answer to an idempotent
        request.
        """
        on_a, on_b = two.account()
        headers = {"idempotency-key": "once"}
        body = {"display_name": "once"}
        made = on_a.post("/v1/model-artifacts", json=body, headers=headers)
        again = on_b.post("/v1/model-artifacts", json=body, headers=headers)
        assert again.json() == made.raise_for_status().json()
        assert again.headers["idempotency-replayed"] == "true"

    async def test_migrations_of_eight(self, tmp_path: Path, postgres_url: str) -> None:
        """Eight servers migrate one empty database at the same time."""
        admin = Database(postgres_url)
        name = new_id(Prefix.SERVER)
        async with admin.engine.connect() as connection:
            outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await outside.execute(text(f'CREATE DATABASE "{name}"'))
        await admin.close()
        opened = [Database(postgres_url.rpartition("/")[0] + f"/{name}") for _ in range(8)]
        await asyncio.gather(*(database.migrate() for database in opened))
        async with opened[0].reading() as session:
            assert await session.scalar(text("SELECT count(*) FROM alembic_version")) == 1
        for database in opened:
            await database.close()


class TestSecrets:
    async def test_made_once(self, databases: list[Database], tmp_path: Path) -> None:
        made = [ServerSecret(tmp_path, waits=True) for _ in range(6)]
        await asyncio.gather(*(secret.agree(databases[at % 2]) for at, secret in enumerate(made)))
        sealed = made[0].seal(b"text")
        assert {secret.unseal(sealed) for secret in made} == {b"text"}
        assert len({secret.sign("text") for secret in made}) == 1

    async def test_a_file_is_taken_over(self, databases: list[Database], tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        before = ServerSecret(tmp_path / "a")
        after, other = (
            ServerSecret(tmp_path / "a", waits=True),
            ServerSecret(tmp_path, waits=True),
        )
        await after.agree(databases[0])
        await other.agree(databases[1])
        assert other.unseal(before.seal(b"text")) == after.unseal(before.seal(b"text")) == b"text"

    async def test_another_file_is_refused(self, databases: list[Database], tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        ServerSecret(tmp_path / "a")
        await ServerSecret(tmp_path, waits=True).agree(databases[0])
        with pytest.raises(OtherSecretError):
            await ServerSecret(tmp_path / "a", waits=True).agree(databases[1])

    async def test_operator_key(self, tmp_path: Path, postgres_url: str) -> None:
        """A valid key in the file is kept. A revoked key is replaced by the servers' shared key."""
        async with (
            serving(tmp_path / "a", database_url=postgres_url) as a,
            serving(tmp_path / "b", database_url=postgres_url) as b,
        ):
            async with a.platform.database.transaction() as session:
                await session.execute(text("DELETE FROM api_keys WHERE scope = 'operator'"))
                await session.execute(text("DELETE FROM shared_secrets WHERE name LIKE 'oper%'"))
            first = await bootstrap.first_keys(a.parts)
            key = first.read_text()
            second = await bootstrap.first_keys(b.parts)
            assert second.read_text() == key
            second.write_text("sk-gone-secret\n")
            await bootstrap.first_keys(b.parts)
            assert second.read_text() == key
            async with a.client(key.strip()) as client:
                assert (await client.get("/v1/accounts")).status_code == 200
            async with a.platform.database.reading() as session:
                stored = await session.scalar(text("SELECT value FROM shared_secrets LIMIT 1"))
            # The database does not store the key in plain text.
            assert key.strip().encode() not in stored


async def silence(database: Database, server_id: str, seconds: float) -> None:
    """Sets a server's last heartbeat to `seconds` ago."""
    async with database.transaction() as session:
        seen_at = db.now() - timedelta(seconds=seconds)
        await session.execute(
            update(ServerRow).where(ServerRow.id == server_id).values(seen_at=seen_at)
        )


class TestHeartbeat:
    async def test_a_silent_one_is_gone(self, databases: list[Database]) -> None:
        clock = Clock()
        a, b = (Servers(database, clock) for database in databases)
        await a.beat()
        await b.beat()
        await a.beat()
        assert (a.count, b.count) == (2, 2)
        assert (a.is_first, b.is_first) == (True, False)
        for _ in range(int(GONE_AFTER_S) + 1):
            clock.now += 1
            assert await b.beat() == []
        await silence(databases[0], "srv_a", GONE_AFTER_S + 1)
        assert await b.beat() == ["srv_a"]
        assert (b.count, b.is_first) == (1, True)
        # The server was slow and returns.
        await a.beat()
        await b.beat()
        assert b.count == 2

    async def test_who_was_away_judges_nobody(self, databases: list[Database]) -> None:
        """After a database outage all servers are silent, but none is considered lost."""
        clock = Clock()
        a, b = (Servers(database, clock) for database in databases)
        await a.beat()
        for _ in range(int(GONE_AFTER_S) + 1):
            clock.now += 1
            await b.beat()
        clock.now += 20
        await silence(databases[0], "srv_a", 20)
        assert await b.beat() == []
        assert await a.beat() == []
        assert (await b.beat(), b.count) == ([], 2)

    async def test_who_starts_judges_nobody(self, databases: list[Database]) -> None:
        clock = Clock()
        a, b = (Servers(database, clock) for database in databases)
        await a.beat()
        await silence(databases[0], "srv_a", 3600)
        assert await b.beat() == []

    async def test_a_heartbeat_is_one_statement(self, databases: list[Database]) -> None:
        clock = Clock()
        a, b = (Servers(database, clock, loaded=lambda: ["v"]) for database in databases)
        for _ in range(int(GONE_AFTER_S) + 1):
            clock.now += 1
            await a.beat()
        await b.beat()
        with counted(databases[0]) as statements:
            clock.now += 1
            assert await a.beat() == []
        assert (len(statements), a.count, a.is_first, b.is_first) == (1, 2, True, False)
        async with databases[1].reading() as session:
            assert await loaded_elsewhere(session, "srv_b", "v")


async def ingesting(database: Database, blobs: Folder, server_id: str | None) -> tuple[str, str]:
    """Creates an artifact that a server inspects, with one file and a part that is to replace a
    file. Returns the ids of the artifact and its upload session.
    """
    artifact_id, upload_id = new_id(Prefix.ARTIFACT), new_id(Prefix.UPLOAD)
    key = f"artifacts/{artifact_id}/{upload_id}/1"
    async with database.transaction() as session:
        account = Account(id=new_id(Prefix.ACCOUNT), name="test", created_at=db.now())
        session.add(account)
        await session.flush()
        session.add(
            Artifact(
                id=artifact_id,
                account_id=account.id,
                display_name="model",
                status=ArtifactStatus.INGESTING.value,
                open_upload_id=upload_id,
                created_at=db.now(),
                updated_at=db.now(),
            )
        )
        await session.flush()
        session.add(
            Upload(
                id=upload_id,
                artifact_id=artifact_id,
                status=UploadStatus.INGESTING.value,
                part_size=1 << 20,
                server_id=server_id,
                created_at=db.now(),
                expires_at=db.now() + timedelta(days=1),
            )
        )
        await session.flush()
        session.add(UploadFile(upload_id=upload_id, path="config.json", blob_key=key, size=4))
    blobs.write(key, b"data")
    return artifact_id, upload_id


async def states(database: Database, artifact_id: str, upload_id: str) -> tuple[str, str]:
    async with database.reading() as session:
        artifact = await session.get_one(Artifact, artifact_id)
        upload = await session.get_one(Upload, upload_id)
        return artifact.status, upload.status


class TestRecovery:
    async def test_only_of_those_that_have_gone(
        self, databases: list[Database], tmp_path: Path
    ) -> None:
        a, b = databases
        await Servers(a).beat()
        blobs = Folder(tmp_path / "blobs")
        alive = await ingesting(a, blobs, "srv_a")
        lost = await ingesting(a, blobs, "srv_gone")
        before = await ingesting(a, blobs, None)
        await upkeep.recover(b, blobs)
        assert await states(b, *alive) == ("ingesting", "ingesting")
        assert await states(b, *lost) == await states(b, *before) == ("uploading", "open")
        await silence(a, "srv_a", GONE_AFTER_S + 1)
        # Silence alone is not enough: another server must have declared it lost.
        await upkeep.reopen_lost(b)
        assert await states(b, *alive) == ("ingesting", "ingesting")
        clock = Clock()
        servers = Servers(b, clock)
        for _ in range(int(GONE_AFTER_S) + 2):
            await servers.beat()
            clock.now += 1
        await upkeep.reopen_lost(b)
        assert await states(b, *alive) == ("uploading", "open")

    async def test_bytes_on_their_way_stay(self, databases: list[Database], tmp_path: Path) -> None:
        a, b = databases
        await Servers(a).beat()
        blobs = Folder(tmp_path / "blobs")
        artifact_id, upload_id = await ingesting(a, blobs, "srv_a")
        async with a.transaction() as session:
            upload = await session.get_one(Upload, upload_id)
            upload.status = UploadStatus.OPEN.value
        aside, stray = f"artifacts/{artifact_id}/{upload_id}/1.3", "artifacts/art_x/upl_x/1"
        for key in (aside, stray):
            blobs.write(key, b"data")
        await upkeep.recover(b, blobs)
        assert blobs.local_path(aside).exists()
        assert not blobs.local_path(stray).exists()
        async with a.transaction() as session:
            await session.execute(text("DELETE FROM servers"))
        await upkeep.recover(b, blobs)
        assert not blobs.local_path(aside).exists()
        assert blobs.local_path(f"artifacts/{artifact_id}/{upload_id}/1").exists()


def test_one_that_is_killed_is_followed_by_another(two: Pair, tmp_path: Path) -> None:
    """A third server starts, is killed and starts again. The other servers keep serving."""
    env = {
        "STOKER_DATABASE_URL": two.cluster.url,
        "STOKER_BLOB_URL": f"file://{two.a.data_dir.parent.parent}/blobs",
    }
    with running(tmp_path / "data", **env, **WITHOUT_MODELS) as third:
        assert third.operator_key == two.a.operator_key
        third.kill()
        third.start()
        with third.client(two.a.operator_key) as operator:
            assert operator.get("/v1/accounts").status_code == 200
    with two.a.client() as client:
        assert client.get("/health").status_code == 200
