"""A secret that is set for servers of one PostgreSQL. The database stores no part of it."""

import asyncio
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select, text

from stoker.store.db import Database
from stoker.store.secret import CHECK, FILE, OtherSecretError, ServerSecret
from stoker.store.tables.servers import SharedSecret
from tests.servers.support import pair
from tests.servers.test_starting import databases
from tests.support import postgres
from tests.support.server import WITHOUT_MODELS, Server, running

__all__ = ["databases"]

ONE, OTHER = (urlsafe_b64encode(bytes([number]) * 32) for number in (1, 2))


async def agreed(folder: Path, database: Database, given: bytes | None = None) -> ServerSecret:
    secret = ServerSecret(folder, given=given, waits=True)
    await secret.agree(database)
    return secret


async def rows(database: Database) -> dict[str, bytes]:
    async with database.reading() as session:
        return {row.name: row.value for row in await session.scalars(select(SharedSecret))}


class TestAgree:
    async def test_one_that_is_given(self, databases: list[Database], tmp_path: Path) -> None:
        a, b = await asyncio.gather(*(agreed(tmp_path, database, ONE) for database in databases))
        assert b.unseal(a.seal(b"text")) == Fernet(ONE).decrypt(a.seal(b"text")) == b"text"
        assert b.signed("text", a.sign("text"))
        stored = await rows(databases[0])
        assert set(stored) == {CHECK}
        assert ONE not in stored[CHECK]
        assert not (tmp_path / FILE).exists()

    async def test_the_databases_own_is_removed(
        self, databases: list[Database], tmp_path: Path
    ) -> None:
        before = await agreed(tmp_path, databases[0])
        theirs = (await rows(databases[0]))[FILE]
        for _ in range(2):
            after = await agreed(tmp_path, databases[1], theirs)
            assert after.unseal(before.seal(b"text")) == b"text"
            assert after.signed("text", before.sign("text"))
            assert set(await rows(databases[0])) == {CHECK}

    async def test_another_than_the_databases_is_refused(
        self, databases: list[Database], tmp_path: Path
    ) -> None:
        before = await agreed(tmp_path, databases[0])
        stored = await rows(databases[0])
        with pytest.raises(OtherSecretError, match="set theirs, the row 'server-secret'"):
            await agreed(tmp_path, databases[1], ONE)
        assert await rows(databases[0]) == stored
        after = await agreed(tmp_path, databases[1])
        assert after.unseal(before.seal(b"text")) == b"text"

    @pytest.mark.parametrize(
        ("given", "why"),
        [(None, "use a configured secret. Set it"), (OTHER, "Set their secret here")],
        ids=["none", "another"],
    )
    async def test_who_is_not_given_theirs_is_refused(
        self, given: bytes | None, why: str, databases: list[Database], tmp_path: Path
    ) -> None:
        await agreed(tmp_path, databases[0], ONE)
        before = await rows(databases[0])
        with pytest.raises(OtherSecretError, match=why):
            await agreed(tmp_path, databases[1], given)
        assert await rows(databases[0]) == before

    async def test_a_file_is_as_good(self, databases: list[Database], tmp_path: Path) -> None:
        await agreed(tmp_path, databases[0], ONE)
        (tmp_path / FILE).write_bytes(ONE)
        for setting in (None, ONE):
            secret = await agreed(tmp_path, databases[1], setting)
            assert Fernet(ONE).decrypt(secret.seal(b"text")) == b"text"
        assert set(await rows(databases[0])) == {CHECK}
        (tmp_path / FILE).write_bytes(OTHER)
        for setting in (None, ONE):
            with pytest.raises(
                OtherSecretError, match=f"{FILE} differs from the configured secret"
            ):
                await agreed(tmp_path, databases[1], setting)

    async def test_whoever_is_first_decides(
        self, databases: list[Database], tmp_path: Path
    ) -> None:
        """If servers start at once with different secrets, the servers with one of them continue.
        The others fail to start.
        """
        settings = [None, ONE, None, ONE, OTHER, OTHER]
        results = await asyncio.gather(
            *(agreed(tmp_path, databases[at % 2], item) for at, item in enumerate(settings)),
            return_exceptions=True,
        )
        good = [item for item in results if isinstance(item, ServerSecret)]
        assert len(good) == 2
        assert good[1].unseal(good[0].seal(b"text")) == b"text"
        assert all(isinstance(item, OtherSecretError) for item in results if item not in good)
        assert len(await rows(databases[0])) == 1


def repeated(client: Any) -> Any:
    """Sends an idempotent request and returns its answer, which the server stores sealed."""
    request = {"json": {"display_name": "once"}, "headers": {"idempotency-key": "once"}}
    return client.post("/v1/model-artifacts", **request).raise_for_status().json()


def refused(data_dir: Path, **env: str) -> str:
    """Returns the log of a server that fails to start."""
    data_dir.parent.mkdir(parents=True)
    server = Server(data_dir, **{**WITHOUT_MODELS, **env})
    with pytest.raises(RuntimeError, match="the server did not start"):
        server.start()
    assert server.process is not None
    assert server.process.returncode == 3  # uvicorn's exit status: the process was not killed
    return server.log.read_text()


def test_servers_that_are_given_one(tmp_path: Path) -> None:
    """Servers that start at once share one operator key and unseal each other's data. The contents
    of PostgreSQL's disk unseal nothing.
    """
    file = tmp_path / "secret"
    file.write_bytes(ONE + b"\n")
    env = {"STOKER_SECRET_FILE": str(file), **WITHOUT_MODELS}
    with postgres.cluster() as cluster:
        with pair(tmp_path / "two", cluster, **env) as two:
            assert two.a.operator_key == two.b.operator_key
            on_a, on_b = two.account()
            assert repeated(on_b) == repeated(on_a)
            shared = {
                "STOKER_DATABASE_URL": cluster.url,
                "STOKER_BLOB_URL": f"file://{tmp_path}/two/blobs",
            }
            (tmp_path / "c").mkdir()
            settings = {"STOKER_SECRET": ONE.decode(), **WITHOUT_MODELS}
            with running(tmp_path / "c" / "data", **shared, **settings) as third:
                assert third.operator_key == two.a.operator_key
            assert "Set it here in STOKER_SECRET" in refused(tmp_path / "d" / "data", **shared)
            wrong = refused(tmp_path / "e" / "data", STOKER_SECRET=OTHER.decode(), **shared)
            assert "Set their secret here in STOKER_SECRET" in wrong
            assert repeated(on_b) == repeated(on_a)
            made = on_a.post("/v1/api-keys", json={"scope": "account"}).raise_for_status()
            operator_key, answer = two.a.operator_key, made.json()["key"]
        cluster.stop()
        files = [path.read_bytes() for path in cluster.folder.rglob("*") if path.is_file()]
        logs = [path.read_bytes() for path in tmp_path.rglob("*.log")]
    public_id = answer.split("-")[1].encode()
    assert any(public_id in content for content in files), "this would find what is there"
    for hidden in (ONE, operator_key.encode(), answer.encode()):
        assert not [content for content in [*files, *logs] if hidden in content]


async def test_from_the_database_to_the_setting(tmp_path: Path) -> None:
    """A server with its secret in the database receives it as a setting and continues with its
    data.
    """
    with postgres.cluster() as cluster:
        env = {"STOKER_DATABASE_URL": cluster.url, **WITHOUT_MODELS}
        with running(tmp_path / "data", **env) as server, server.account() as client:
            first, key = repeated(client), client.headers["authorization"]
        database = Database(cluster.url)
        try:
            async with database.reading() as session:
                # The query from docs/guide/several-servers.md.
                theirs = await session.scalar(
                    text(
                        "SELECT convert_from(value, 'UTF8') FROM shared_secrets "
                        "WHERE name = 'server-secret'"
                    )
                )
            with (
                running(tmp_path / "data", STOKER_SECRET=theirs, **env) as server,
                server.client(key.removeprefix("Bearer ")) as client,
            ):
                assert repeated(client) == first
                operator_key = server.operator_key
            assert set(await rows(database)) == {CHECK, "operator-key"}
        finally:
            await database.close()
        assert "Set it here" in refused(tmp_path / "other" / "data", **env)
        with running(tmp_path / "third", STOKER_SECRET=theirs, **env) as third:
            assert third.operator_key == operator_key
