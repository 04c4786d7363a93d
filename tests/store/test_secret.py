"""The server's secret on SQLite. It is a file unless the setting provides it."""

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from pydantic import ValidationError
from sqlalchemy import select

from stoker.base.config import Settings
from stoker.cli.settings import read_settings
from stoker.client.errors import WrongUseError
from stoker.store.db import Database
from stoker.store.secret import CHECK, FILE, OtherSecretError, ServerSecret
from stoker.store.tables.servers import SharedSecret
from tests.support.app import serving
from tests.support.server import WITHOUT_MODELS, Server, running

ONE, OTHER = (urlsafe_b64encode(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    await database.migrate()
    yield database
    await database.close()


async def agreed(folder: Path, database: Database, given: bytes | None = None) -> ServerSecret:
    secret = ServerSecret(folder, given=given, waits=True)
    await secret.agree(database)
    return secret


class TestAgree:
    async def test_makes_a_file_once(self, tmp_path: Path, database: Database) -> None:
        before = await agreed(tmp_path, database)
        assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
        after = await agreed(tmp_path, database)
        assert after.unseal(before.seal(b"text")) == b"text"
        async with database.reading() as session:
            assert (await session.scalars(select(SharedSecret))).all() == []

    async def test_makes_none_where_one_is_given(self, tmp_path: Path, database: Database) -> None:
        before, after = [await agreed(tmp_path, database, ONE) for _ in range(2)]
        assert after.unseal(before.seal(b"text")) == b"text"
        assert Fernet(ONE).decrypt(before.seal(b"text")) == b"text"
        assert not (tmp_path / FILE).exists()
        async with database.reading() as session:
            (row,) = (await session.scalars(select(SharedSecret))).all()
        assert row.name == CHECK
        assert ONE not in row.value

    async def test_takes_the_one_of_the_file(self, tmp_path: Path, database: Database) -> None:
        """The file's secret is accepted as the setting. The file may then be deleted, or stay and
        suffice without the setting.
        """
        sealed = (await agreed(tmp_path, database)).seal(b"text")
        secret = (tmp_path / FILE).read_bytes()
        assert (await agreed(tmp_path, database, secret)).unseal(sealed) == b"text"
        assert (await agreed(tmp_path, database)).unseal(sealed) == b"text"
        (tmp_path / FILE).unlink()
        assert (await agreed(tmp_path, database, secret)).unseal(sealed) == b"text"

    async def test_refuses_another_file(self, tmp_path: Path, database: Database) -> None:
        await agreed(tmp_path, database)
        content = (tmp_path / FILE).read_bytes()
        with pytest.raises(
            OtherSecretError,
            match=f"{FILE} differs from the configured secret .* Set the secret of",
        ):
            await agreed(tmp_path, database, ONE)
        assert (tmp_path / FILE).read_bytes() == content

    @pytest.mark.parametrize(
        ("given", "why"),
        [(None, "use a configured secret. Set it"), (OTHER, "Set their secret here")],
    )
    async def test_refuses_to_go_on_without(
        self, given: bytes | None, why: str, tmp_path: Path, database: Database
    ) -> None:
        """A server without the right secret is rejected. It creates no file that would later
        conflict with the right secret.
        """
        await agreed(tmp_path, database, ONE)
        with pytest.raises(OtherSecretError, match=why):
            await agreed(tmp_path, database, given)
        assert not (tmp_path / FILE).exists()
        await agreed(tmp_path, database, ONE)


async def test_the_server_uses_what_is_set(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", secret=ONE.decode()) as app:
        secret = app.platform.secret
        assert Fernet(ONE).decrypt(secret.seal(b"text")) == b"text"
    assert not (tmp_path / "data" / FILE).exists()


def test_a_server_that_does_not_start_ends(tmp_path: Path) -> None:
    """A server that fails to start logs the reason in one line and exits. The database's thread
    does not keep it running.
    """
    data_dir = tmp_path / "data"
    with running(data_dir, STOKER_SECRET=ONE.decode(), **WITHOUT_MODELS):
        pass
    server = Server(data_dir, **WITHOUT_MODELS)
    with pytest.raises(RuntimeError, match="the server did not start"):
        server.start(timeout=60)
    assert server.process is not None
    # uvicorn's exit status: the process was not killed.
    assert server.process.returncode == 3
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    (why,) = [event["why"] for event in events if event["event"] == "server failed to start"]
    assert "Set it here in STOKER_SECRET" in why


class TestSetting:
    def test_is_the_secret(self) -> None:
        assert Settings(secret=ONE.decode()).given_secret == ONE
        assert Settings(_env_file=None).given_secret is None  # type: ignore[call-arg]

    def test_is_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "secret"
        file.write_bytes(ONE + b"\n")
        monkeypatch.setenv("STOKER_SECRET_FILE", str(file))
        assert read_settings().given_secret == ONE

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "secret",
            ONE.decode()[:-1],
            ONE.decode() + "\n",
            # The last character has two unused bits.
            "A" * 42 + "B=",
            "+" * 43 + "=",
            "é" * 44,
        ],
    )
    def test_says_how_to_make_one(self, wrong: str, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        file.write_text(wrong.strip())
        with pytest.raises(WrongUseError, match=r"STOKER_SECRET: .*openssl rand -base64 32"):
            read_settings(secret=wrong)
        if wrong.strip() == wrong:
            with pytest.raises(WrongUseError, match=r"STOKER_SECRET_FILE: .*openssl"):
                read_settings(secret_file=file)

    def test_tells_nobody_what_was_wrong(self) -> None:
        with pytest.raises(ValidationError) as error:
            Settings(secret="my secret")
        assert "my secret" not in str(error.value)
        assert ONE.decode() not in repr(Settings(secret=ONE.decode()))

    def test_is_one_of_the_two(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        file.write_bytes(ONE)
        with pytest.raises(WrongUseError, match="STOKER_SECRET is also set"):
            read_settings(secret=ONE.decode(), secret_file=file)

    def test_file_has_to_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(WrongUseError, match=r"STOKER_SECRET_FILE: .*none cannot be read"):
            read_settings(secret_file=tmp_path / "none")
