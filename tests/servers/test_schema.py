"""Releases share a database: schema changes expand first and contract one release later."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text

import stoker
from stoker.runtime.nodes import messages
from stoker.runtime.nodes.leases import Registration
from stoker.server.backups.archive import BackupError
from stoker.server.backups.creating import create
from stoker.server.backups.restoring import restore
from stoker.store import migrating, schema
from stoker.store.db import Database
from stoker.store.schema import SchemaError, SchemaInUseError
from stoker.store.servers import Servers
from tests.servers.expansion import breaking_changes, shape
from tests.servers.migrations import CONTRACTING, EXPANDING, add_script, copied, knowing
from tests.support import postgres
from tests.support.databases import ACCOUNT, counted

FIRST_REVISION = "0026"
"""First revision that follows the rule."""
REVISIONS = sorted(schema.revisions())
HEAD = REVISIONS[-1]
EXPANDED, CONTRACTED = "0901", "0902"


@pytest.fixture
async def url(cluster: postgres.Cluster) -> AsyncIterator[str]:
    """Yields the URL of an empty database."""
    name = f"schema_{secrets.token_hex(6)}"
    admin = Database(cluster.url, connections=1)
    async with admin.engine.connect() as connection:
        outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await outside.execute(text(f"CREATE DATABASE {name}"))
        yield cluster.url.rpartition("/")[0] + f"/{name}"
        await outside.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    await admin.close()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Yields a database with the schema of this release."""
    opened = Database(url, server_id="srv_own")
    await opened.migrate()
    yield opened
    await opened.close()


@pytest.fixture
def expanding(tmp_path: Path) -> Path:
    """Returns the migrations of the next release, which expand the schema."""
    folder = copied(tmp_path / "expanding")
    add_script(folder, EXPANDED, HEAD, EXPANDING)
    return folder


@pytest.fixture
def contracting(tmp_path: Path, expanding: Path) -> Path:
    """Returns the migrations of the release after the next one, which contract the schema."""
    with knowing(expanding):
        folder = copied(tmp_path / "contracting")
    add_script(folder, CONTRACTED, EXPANDED, CONTRACTING, EXPANDED)
    return folder


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes a migration wait only briefly for heartbeats to end."""
    monkeypatch.setattr(migrating, "_HEARTBEAT_S", 0.3)
    monkeypatch.setattr(migrating, "_PAUSE_S", 0.2)
    yield


async def state(database: Database) -> tuple[str, str, str]:
    """Returns the revision, the oldest revision that may use it, and the release that made it."""
    async with database.engine.connect() as connection:
        revision = await connection.run_sync(schema.current)
        supported = await connection.run_sync(schema.support)
    return revision, supported.oldest_revision, supported.release


class TestReleases:
    async def test_an_older_release_continues_on_an_expanded_schema(
        self, database: Database, expanding: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert await state(database) == (HEAD, FIRST_REVISION, stoker.__version__)
        with knowing(expanding):
            await database.migrate()
        assert await state(database) == (EXPANDED, FIRST_REVISION, stoker.__version__)
        # This release knows nothing of the new revision.
        with caplog.at_level(logging.WARNING):
            await database.migrate()
        assert "this release continues to use it" in caplog.text
        assert await state(database) == (EXPANDED, FIRST_REVISION, stoker.__version__)

    async def test_an_older_release_refuses_a_contracted_schema(
        self, database: Database, contracting: Path, expanding: Path
    ) -> None:
        with knowing(contracting):
            await database.migrate()
        assert await state(database) == (CONTRACTED, EXPANDED, stoker.__version__)
        with knowing(expanding):
            await database.migrate()
        with pytest.raises(SchemaError) as caught:
            await database.migrate()
        assert str(caught.value) == (
            f"The database was migrated to schema {CONTRACTED} by release {stoker.__version__}. "
            f"Release {stoker.__version__} cannot use it. Install release {stoker.__version__} or "
            "a newer one, or restore a backup from before the upgrade."
        )

    async def test_a_foreign_schema_is_refused(self, database: Database) -> None:
        async with database.transaction() as session:
            await session.execute(text("UPDATE alembic_version SET version_num = 'foreign'"))
            await session.execute(text("UPDATE schema_support SET oldest_revision = 'foreign'"))
        with pytest.raises(SchemaError, match="migrated to schema foreign"):
            await database.migrate()

    async def test_sqlite(self, tmp_path: Path, expanding: Path, contracting: Path) -> None:
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
        try:
            with knowing(expanding):
                await database.migrate()
            await database.migrate()
            assert await state(database) == (EXPANDED, FIRST_REVISION, stoker.__version__)
            with knowing(contracting):
                await database.migrate()
            with pytest.raises(SchemaError):
                await database.migrate()
        finally:
            await database.close()

    async def test_a_backup_of_a_newer_release(
        self, tmp_path: Path, expanding: Path, contracting: Path
    ) -> None:
        data_dir, archive = tmp_path / "data", tmp_path / "a.tar"
        data_dir.mkdir()
        for migrations, is_usable in ((expanding, True), (contracting, False)):
            database = Database(f"sqlite+aiosqlite:///{data_dir}/stoker.db")
            with knowing(migrations):
                await database.migrate()
            await database.close()
            archive.unlink(missing_ok=True)
            create(data_dir, archive)
            if not is_usable:
                with pytest.raises(BackupError, match="schema this release cannot use"):
                    restore(archive, tmp_path / "refused")
                return
            restore(archive, tmp_path / "restored")
            restored = Database(f"sqlite+aiosqlite:///{tmp_path}/restored/stoker.db")
            await restored.migrate()
            assert await state(restored) == (EXPANDED, FIRST_REVISION, stoker.__version__)
            await restored.close()


@pytest.mark.usefixtures("brief")
class TestRunningServers:
    async def test_a_contraction_waits_for_servers_of_older_releases(
        self, database: Database, contracting: Path, expanding: Path
    ) -> None:
        older, newer = Servers(database), Servers(Database(database.url, server_id="srv_new"))
        await older.beat()
        with knowing(expanding):
            await database.migrate()
            newer._release = {**newer._release, "own_schema_revision": schema.head()}
            await newer.beat()
        with knowing(contracting):
            with pytest.raises(SchemaInUseError) as caught:
                await database.migrate()
            assert "(srv_own, release" in str(caught.value)
            assert "srv_new" not in str(caught.value)
            assert f"with schema {EXPANDED} or newer" in str(caught.value)
            assert (await state(database))[0] == EXPANDED
            async with database.transaction() as session:
                await session.execute(text("DELETE FROM servers WHERE id = 'srv_own'"))
            await database.migrate()
        assert (await state(database))[0] == CONTRACTED
        await newer.close()

    async def test_and_for_nodes(self, database: Database, contracting: Path) -> None:
        node = Registration(
            id="node_1", name="n1", address="", certificate="", pid=1, version="0.1.0", python=""
        )
        await node.begin(database)
        with knowing(contracting), pytest.raises(SchemaInUseError) as caught:
            await database.migrate()
        assert "node n1 (node_1, release 0.1.0)" in str(caught.value)

    async def test_a_killed_server_counts_until_its_heartbeat_is_old(
        self, database: Database, contracting: Path
    ) -> None:
        await Servers(database).beat()
        begun = time.monotonic()
        with knowing(contracting), pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "GONE_AFTER_S", 2.0)
            patch.setattr(migrating, "_HEARTBEAT_S", 3.0)
            await database.migrate()
        assert time.monotonic() - begun > 1
        assert (await state(database))[0] == CONTRACTED

    async def test_the_first_revision_with_the_rule_is_a_contraction(
        self, url: str, tmp_path: Path
    ) -> None:
        """Releases before it would not start on its result."""
        with knowing(copied(tmp_path / "before", "0025")):
            database = Database(url, server_id="srv_old")
            await database.migrate()
            async with database.transaction() as session:
                await session.execute(
                    text(
                        "INSERT INTO servers (id, started_at, seen_at, loaded, version) "
                        "VALUES ('srv_old', now(), now(), '[]', '0.0.9')"
                    )
                )
        with pytest.raises(SchemaInUseError, match=r"srv_old, release 0\.0\.9"):
            await database.migrate()
        await database.close()


class TestLocks:
    async def test_a_migration_blocks_running_servers_only_briefly(
        self, database: Database, expanding: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A long transaction holds the table. Other statements on it do not wait for its end."""
        async with database.reading() as holder:
            await holder.execute(text("SELECT count(*) FROM accounts"))
            with knowing(expanding), caplog.at_level(logging.WARNING):
                migration = asyncio.create_task(database.migrate())
                longest = 0.0
                deadline = time.monotonic() + 8
                while time.monotonic() < deadline:
                    begun = time.monotonic()
                    await database.poll(text("SELECT count(*) FROM accounts"))
                    longest = max(longest, time.monotonic() - begun)
                    await asyncio.sleep(0.05)
                assert not migration.done()
                await holder.rollback()
                await migration
        assert 1 < longest < 4
        assert "migration waits for tables" in caplog.text
        assert (await state(database))[0] == EXPANDED

    async def test_an_index_is_built_while_others_wait_for_the_lock(
        self, database: Database, expanding: Path
    ) -> None:
        add_script(
            expanding,
            CONTRACTED,
            EXPANDED,
            "with op.get_context().autocommit_block():\n"
            "    op.create_index(\n"
            '        "ix_accounts_hue", "accounts", ["hue"], postgresql_concurrently=True\n'
            "    )",
        )
        opened = [Database(database.url) for _ in range(4)]
        with knowing(expanding):
            async with asyncio.timeout(20):
                await asyncio.gather(*(one.migrate() for one in opened))
        for one in opened:
            await one.close()
        async with database.reading() as session:
            valid = await session.scalar(
                text("SELECT indisvalid FROM pg_index WHERE indexrelid='ix_accounts_hue'::regclass")
            )
        assert valid is True

    async def test_prepared_statements_of_a_running_server_stay_valid(
        self, database: Database, expanding: Path
    ) -> None:
        """A connection has prepared its statements before the schema changes."""
        servers = Servers(Database(database.url, server_id="srv_a", connections=1))
        await servers.beat()
        await servers.beat()
        with knowing(expanding):
            add_script(
                expanding,
                CONTRACTED,
                EXPANDED,
                'op.add_column("servers", sa.Column("hue", sa.String(8), server_default="red"))',
            )
            await database.migrate()
        await servers.beat()
        assert servers.count == 1
        await servers.close()


async def changes_of(database: Database, body: str, tmp_path: Path) -> list[str]:
    """Returns the breaking changes of a migration script."""
    folder = copied(tmp_path / secrets.token_hex(4))
    add_script(folder, EXPANDED, HEAD, body)
    with knowing(folder):
        return await changes_to_head(database)


async def changes_to_head(database: Database) -> list[str]:
    async with database.engine.connect() as connection:
        before = await connection.run_sync(shape)
        with counted(database) as statements:
            await connection.rollback()
            await connection.run_sync(schema.upgrade)
        after = await connection.run_sync(shape)
    return breaking_changes(before, after, statements)


class TestRule:
    """A migration that declares to be compatible only adds."""

    @pytest.mark.parametrize("revision", [one for one in REVISIONS if one >= FIRST_REVISION])
    async def test_scripts_of_this_release(self, url: str, tmp_path: Path, revision: str) -> None:
        before = REVISIONS[REVISIONS.index(revision) - 1]
        database = Database(url)
        try:
            with knowing(copied(tmp_path / "before", before)):
                await database.migrate()
            # Scripts may change rows of a new database, which no other server uses.
            async with database.engine.begin() as connection:
                await connection.execute(text(ACCOUNT))
            with knowing(copied(tmp_path / "after", revision)):
                changes = await changes_to_head(database)
                is_compatible = not schema.compatible_from(before)
            assert not (is_compatible and changes)
        finally:
            await database.close()

    def test_every_script_declares_it(self) -> None:
        for path in sorted((schema.MIGRATIONS / "versions").glob("0*.py")):
            if (revision := path.name[:4]) < FIRST_REVISION:
                continue
            declared = re.search(r"^COMPATIBLE_FROM: str \| None = (.+)$", path.read_text(), re.M)
            assert declared, f"{path.name} must declare COMPATIBLE_FROM"
            if declared[1] != "None" and revision != FIRST_REVISION:
                oldest = declared[1].strip('"')
                assert oldest in REVISIONS
                # Otherwise no two releases could serve together.
                assert oldest < revision

    async def test_additions(self, database: Database, tmp_path: Path) -> None:
        assert await changes_of(database, EXPANDING, tmp_path) == []

    @pytest.mark.parametrize(
        ("body", "change"),
        [
            ('op.drop_column("videos", "progress")', "drops videos.progress"),
            ('op.drop_table("trials")', "drops trials"),
            (
                'op.alter_column("videos", "progress", new_column_name="share")',
                "drops videos.progress",
            ),
            (
                'op.add_column("accounts", sa.Column("hue", sa.Text(), nullable=False))',
                "adds accounts.hue with NOT NULL and without a default",
            ),
            (
                'op.alter_column("accounts", "name", type_=sa.String(8))',
                "changes the type of accounts.name",
            ),
            (
                'op.alter_column("accounts", "name", type_=sa.Text())',
                "changes the type of accounts.name",
            ),
            (
                'op.alter_column("accounts", "name", nullable=True)',
                "changes NULL of accounts.name",
            ),
            (
                'op.alter_column("servers", "version", server_default=None)',
                "drops the default of servers.version",
            ),
            (
                'op.create_unique_constraint("uq_names", "accounts", ["name"])',
                "adds the rule uq_names",
            ),
            (
                'op.create_index("ix_names", "accounts", ["name"])',
                "blocks writes to accounts: create its index with CONCURRENTLY",
            ),
            ("op.execute(\"UPDATE accounts SET name = ''\")", "locks rows of accounts"),
            (
                "op.create_table("
                '"paints", sa.Column("id", sa.String(40), sa.ForeignKey("accounts.id")))',
                "paints blocks deletions in accounts: its foreign key needs ON DELETE",
            ),
        ],
    )
    async def test_breaking_changes(
        self, database: Database, tmp_path: Path, body: str, change: str
    ) -> None:
        assert change in await changes_of(database, body, tmp_path)


ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \| (\d{4}) \| (\d+) to (\d+) \|", re.M)


def test_documented_releases() -> None:
    """The table of releases is current, and each release works with the one before it."""
    page = (Path(stoker.__file__).parents[1] / "COMPATIBILITY.md").read_text()
    releases = [match.groups() for match in ROW.finditer(page)]
    newest = releases[0]
    assert newest == (
        stoker.__version__,
        HEAD,
        str(messages.OLDEST_VERSION),
        str(messages.VERSION),
    )
    for release, before in pairwise(releases):
        assert schema.compatible_from(before[1]) <= before[1]
        assert int(release[2]) <= int(before[3])
