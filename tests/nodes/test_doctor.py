"""Tests of `stoker doctor` on the machines of a fleet and on faulty databases."""

import asyncio
import json
import platform
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import stoker
from stoker.base.config import Settings
from stoker.cli import doctor, fleet_health, server_health
from stoker.runtime.nodes.identity import new_identity
from stoker.runtime.nodes.leases import NodeRecord, Registration
from stoker.runtime.observed import MachineStats
from stoker.store.db import Database
from tests.cli.support import Cli
from tests.nodes.support import Fleet
from tests.support import postgres

MIGRATIONS = "store/migrations/versions"
NOBODY = "http://127.0.0.1:9"
ELSEWHERE = "192.0.2.1:7070"
"""Address of RFC 5737, which no machine has."""
HEAD = max(one.name for one in (Path(stoker.__file__).parent / MIGRATIONS).glob("0*.py"))[:4]


RECORD = NodeRecord(
    id="node_1",
    name="n",
    address=ELSEWHERE,
    certificate="",
    pid=1,
    version=stoker.__version__,
    python=platform.python_version(),
    is_draining=False,
    machine=MachineStats(),
    started_at=datetime.now(UTC),
    seen_at=datetime.now(UTC),
)


def told(cli: Cli) -> dict[str, dict[str, Any]]:
    """Returns the rows of the report by name."""
    return {row["name"]: row for row in json.loads(cli.run("doctor", "--json").stdout)["checks"]}


def statuses(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["status"] for name, row in rows.items()}


@pytest.fixture(autouse=True)
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the checks of the machine, because the import of torch takes seconds."""
    monkeypatch.setattr(doctor, "MACHINE", (doctor._fleet,))


class TestFleet:
    def test_all_is_well_from_every_machine(self, fleet_of_two: Fleet) -> None:
        gateway = fleet_of_two.gateways[0]
        for server in (gateway, fleet_of_two.nodes[1]):
            settings = {**fleet_of_two.env, "STOKER_DATA_DIR": str(server.data_dir)}
            rows = told(Cli(gateway.base_url, gateway.operator_key, settings))
            expected_names = {
                "database",
                "database: schema",
                "database: clock",
                "secret",
                "servers",
                "blob store",
                "server",
                "readiness",
                "API key",
            }
            name = platform.node()[:63]
            for node in fleet_of_two.nodes:
                expected_names |= {
                    f"node {name} ({node.id}): {check}" for check in ("release", "reach")
                }
            content = asyncio.run(_content(fleet_of_two.cluster.url))
            for [identifier] in content["servers"]:
                expected_names.add(f"server {name} ({identifier}): release")
            assert rows.keys() == expected_names
            assert set(statuses(rows).values()) == {"ok"}
            assert rows["database"]["found"].startswith("PostgreSQL 1")
            assert rows["servers"]["found"] == "2 running"
            assert rows["database: schema"]["found"] == HEAD
            assert rows["blob store"]["found"].startswith("written, read, listed and deleted in ")
            for node in fleet_of_two.nodes:
                reach = rows[f"node {name} ({node.id}): reach"]["found"]
                assert reach.startswith(f"{node.base_url} answers in ")
                assert 0 < float(reach.split()[-2]) < 5000
                release = rows[f"node {name} ({node.id}): release"]["found"]
                assert release == f"Stoker {stoker.__version__}, Python {platform.python_version()}"

    def test_a_node_sees_no_gateway_in_it(self, fleet_of_two: Fleet) -> None:
        node = fleet_of_two.nodes[0]
        before = node.log.read_text().count("gateway connected")
        told(Cli(NOBODY, None, fleet_of_two.env))
        assert node.log.read_text().count("gateway connected") == before
        assert "another version" not in node.log.read_text()

    def test_it_leaves_nothing(self, fleet_of_two: Fleet, tmp_path: Path) -> None:
        blobs = Path(fleet_of_two.env["STOKER_BLOB_URL"].removeprefix("file://"))
        settings = {**fleet_of_two.env, "STOKER_DATA_DIR": str(tmp_path)}
        before = asyncio.run(_content(fleet_of_two.cluster.url))
        told(Cli(NOBODY, None, settings))
        assert asyncio.run(_content(fleet_of_two.cluster.url)) == before
        assert [*tmp_path.iterdir()] == []
        assert not (blobs / "probe").exists()

    def test_on_a_node_no_server_need_be(
        self, fleet_of_two: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nowhere = NOBODY
        monkeypatch.setattr(server_health, "DEFAULT_BASE_URL", nowhere)
        data_dir = str(fleet_of_two.nodes[0].data_dir)
        on_node = Cli(nowhere, None, {**fleet_of_two.env, "STOKER_DATA_DIR": data_dir})
        row = told(on_node)["server"]
        assert (row["status"], row["found"]) == ("warn", "no server on this node")
        data_dir = str(fleet_of_two.gateways[0].data_dir)
        on_gateway = Cli(nowhere, None, {**fleet_of_two.env, "STOKER_DATA_DIR": data_dir})
        assert told(on_gateway)["server"]["status"] == "fail"

    def test_another_secret(self, fleet_of_two: Fleet, tmp_path: Path) -> None:
        other = urlsafe_b64encode(secrets.token_bytes(32)).decode()
        env = {**fleet_of_two.env, "STOKER_DATA_DIR": str(tmp_path), "STOKER_SECRET": other}
        before = asyncio.run(_content(fleet_of_two.cluster.url))
        rows = told(Cli(NOBODY, None, env))
        assert rows["secret"]["status"] == "fail"
        assert "set theirs" in rows["secret"]["hint"]
        assert other not in json.dumps(rows)
        assert not any("reach" in name for name in rows)
        assert asyncio.run(_content(fleet_of_two.cluster.url)) == before


async def _content(url: str) -> dict[str, list[Any]]:
    """Returns all rows of the tables that only servers write at their start."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return {
            table: sorted(
                tuple(row) for row in await connection.fetch(f"SELECT {columns} FROM {table}")
            )
            for table, columns in {
                "shared_secrets": "*",
                "alembic_version": "*",
                "api_keys": "id",
                "servers": "id",
                "nodes": "id, certificate",
            }.items()
        }
    finally:
        await connection.close()


@dataclass
class Own:
    """Database of one test, which no server uses."""

    url: str
    root: Path

    async def told(self, **env: str) -> dict[str, dict[str, Any]]:
        settings = {
            "STOKER_DATABASE_URL": self.url,
            "STOKER_DATA_DIR": str(self.root / "data"),
            "STOKER_RUNTIME": "nodes",
            **env,
        }
        return await asyncio.to_thread(told, Cli(NOBODY, None, settings))

    async def run(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self.url.replace("+asyncpg", ""))
        try:
            return await connection.fetch(statement)
        finally:
            await connection.close()

    async def migrate(self) -> None:
        database = Database(self.url)
        await database.migrate()
        await database.close()

    async def add(self, **given: Any) -> str:
        """Adds a node's row as its host writes it. Returns the name of the node in the report."""
        identity = new_identity("node_x")
        number = secrets.token_hex(4)
        node = Registration(
            id=f"node_{number}",
            name=f"n{number}",
            address=ELSEWHERE,
            certificate=identity.certificate,
            pid=1,
            version=stoker.__version__,
            python=platform.python_version(),
        )
        node = replace(node, **given)
        database = Database(self.url, connections=1)
        await node.begin(database)
        await database.close()
        return f"node {node.name} ({node.id})"


@pytest.fixture
async def own(cluster: postgres.Cluster, tmp_path: Path) -> AsyncIterator[Own]:
    name = f"doctor_{secrets.token_hex(6)}"
    server = Own(cluster.url, tmp_path)
    await server.run(f"CREATE DATABASE {name}")
    yield Own(cluster.url.rpartition("/")[0] + f"/{name}", tmp_path)
    await server.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def migrated(own: Own) -> Own:
    await own.migrate()
    return own


class TestDatabase:
    async def test_is_away(self, own: Own) -> None:
        port = _free_port()
        url = f"postgresql+asyncpg://stoker:very-secret@127.0.0.1:{port}/stoker"
        rows = await replace(own, url=url).told()
        row = rows["database"]
        assert row["status"] == "fail"
        assert row["found"].startswith(f"127.0.0.1:{port}/stoker: ")
        assert "STOKER_DATABASE_URL" in row["hint"]
        assert "very-secret" not in json.dumps(rows)
        assert "secret" not in rows

    async def test_is_empty_and_stays_so(self, own: Own) -> None:
        rows = await own.told()
        row = rows["database: schema"]
        assert (row["status"], row["found"]) == ("ok", "none yet; created at the first start")
        assert "secret" not in rows
        tables = "SELECT * FROM pg_catalog.pg_tables WHERE schemaname = 'public'"
        assert await own.run(tables) == []

    async def test_has_an_older_schema(self, migrated: Own) -> None:
        await migrated.run("UPDATE alembic_version SET version_num = '0016'")
        row = (await migrated.told())["database: schema"]
        assert (row["status"], row["found"]) == ("warn", f"0016, older than this release's {HEAD}")
        assert "next start migrates" in row["hint"]
        [revision] = await migrated.run("SELECT version_num FROM alembic_version")
        assert revision["version_num"] == "0016"

    async def test_has_a_newer_schema(self, migrated: Own) -> None:
        await migrated.run("UPDATE alembic_version SET version_num = '0999'")
        rows = await migrated.told()
        row = rows["database: schema"]
        assert row["status"] == "warn"
        assert row["found"] == f"0999, newer than this release's {HEAD}"
        assert "This release can use it" in row["hint"]
        assert "servers" in rows

    async def test_has_a_schema_that_is_too_new(self, migrated: Own) -> None:
        await migrated.run("UPDATE alembic_version SET version_num = '0999'")
        await migrated.run("UPDATE schema_support SET oldest_revision = '0998', release = '0.9.0'")
        rows = await migrated.told()
        row = rows["database: schema"]
        assert row["status"] == "fail"
        assert row["found"] == f"0999, newer than this release's {HEAD}"
        assert "Install release 0.9.0 or a newer one" in row["hint"]
        assert "servers" not in rows

    async def test_a_fleet_that_has_not_begun(self, migrated: Own) -> None:
        rows = await migrated.told()
        assert statuses(rows) == {
            "database": "ok",
            "database: schema": "ok",
            "database: clock": "ok",
            "secret": "ok",
            "servers": "ok",
            "nodes": "warn",
            "server": "fail",
        }
        assert rows["secret"]["found"] == "none yet; created by the first server"
        assert "stoker node host" in rows["nodes"]["hint"]
        assert await migrated.run("SELECT * FROM shared_secrets") == []

    @pytest.mark.parametrize(("seconds", "says"), [(90, "ahead of"), (-90, "behind")])
    async def test_has_another_clock(self, migrated: Own, seconds: int, says: str) -> None:
        await skewed(migrated, f"pg_catalog.clock_timestamp() + interval '{seconds} seconds'")
        row = (await migrated.told())["database: clock"]
        assert row["status"] == "warn"
        apart, _, times = row["found"].partition(": ")
        assert says in apart
        assert abs(float(apart.split()[0]) - 90) < 1
        database_time, here = times.split(", ")
        assert (database_time.split()[1], here.split()[1]) == ("there", "here")
        assert database_time.split()[0] != here.split()[0]
        assert "NTP" in row["hint"]

    async def test_half_of_the_way_is_taken_off(self, migrated: Own) -> None:
        """The database reads its clock at the end of a second. The check subtracts half of the
        round trip. Without that the difference would be the whole second.
        """
        sleeps = "SELECT pg_catalog.clock_timestamp() FROM pg_catalog.pg_sleep(1)"
        await skewed(migrated, f"({sleeps})")
        row = (await migrated.told())["database: clock"]
        assert row["status"] == "ok"
        assert abs(float(row["found"].split()[0]) - 0.5) < 0.2


async def skewed(own: Own, moment: str) -> None:
    """Makes all sessions of a database read another clock."""
    name = own.url.rpartition("/")[2]
    await own.run("CREATE SCHEMA skewed")
    await own.run(
        "CREATE FUNCTION skewed.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE "
        f"AS $$ SELECT {moment} $$"
    )
    await own.run(f"ALTER DATABASE {name} SET search_path = skewed, public, pg_catalog")


class TestServers:
    async def test_releases(self, migrated: Own) -> None:
        await begun(migrated)
        python = platform.python_version()
        servers = {"server_1": ("0.0.1", python), "server_2": (stoker.__version__, python)}
        for identifier, (version, python) in servers.items():
            await migrated.run(
                "INSERT INTO servers (id, started_at, seen_at, loaded, host, version, python) "
                f"VALUES ('{identifier}', now(), now(), '[]', 'h', '{version}', '{python}')"
            )
        rows = await migrated.told()
        assert rows["servers"]["found"] == "2 running"
        older, same = (rows[f"server h ({server_id}): release"] for server_id in servers)
        assert (older["status"], same["status"]) == ("warn", "ok")
        assert older["found"].endswith(f", but {stoker.__version__} here")
        assert "during an upgrade, by one release" in older["hint"]

    async def test_one_from_before_releases_were_told(self, migrated: Own) -> None:
        await begun(migrated)
        await migrated.run(
            "INSERT INTO servers (id, started_at, seen_at, loaded) "
            "VALUES ('server_0', now(), now(), '[]')"
        )
        row = (await migrated.told())["server server_0: release"]
        assert (row["status"], "older" in row["found"]) == ("fail", True)


class TestNodes:
    async def test_an_older_release(self, migrated: Own, tmp_path: Path) -> None:
        await begun(migrated)
        name = await migrated.add(version="0.0.1")
        row = (await migrated.told())[f"{name}: release"]
        assert row["status"] == "warn"
        assert row["found"].endswith(f", but {stoker.__version__} here")
        assert "during an upgrade, by one release" in row["hint"]

    async def test_another_python(self, migrated: Own) -> None:
        await begun(migrated)
        local_version = platform.python_version()
        major, minor, patch = sys.version_info[:3]
        name = await migrated.add(python=f"{major}.{minor + 1}.0")
        patched = await migrated.add(python=f"{major}.{minor}.{patch + 1}")
        rows = await migrated.told()
        row = rows[f"{name}: release"]
        assert (row["status"], row["found"].endswith(f", but {local_version} here")) == (
            "warn",
            True,
        )
        assert "same minor version" in row["hint"]
        assert rows[f"{patched}: release"]["status"] == "ok"

    def test_ray_needs_the_same_patch(self, tmp_path: Path) -> None:
        major, minor, patch = sys.version_info[:3]
        node = replace(RECORD, python=f"{major}.{minor}.{patch + 1}")
        on_ray = Settings(data_dir=tmp_path).model_copy(update={"runtime": "ray"})
        row = fleet_health._release_of_node(on_ray, node)
        assert (row.status, "patch version" in row.hint) == ("fail", True)
        assert fleet_health._release_of_node(on_ray, RECORD).status == "ok"

    async def test_loopback_of_another_machine(self, migrated: Own) -> None:
        await begun(migrated)
        name = await migrated.add(address=f"127.0.0.1:{_free_port()}")
        row = (await migrated.told())[f"{name}: reach"]
        assert row["status"] == "fail"
        assert "STOKER_NODE_HOST" in row["hint"]
        assert "STOKER_NODE_ADDRESS" in row["hint"]

    async def test_behind_a_firewall(self, migrated: Own) -> None:
        await begun(migrated)
        name = await migrated.add()
        row = (await migrated.told())[f"{name}: reach"]
        assert row["status"] == "fail"
        assert row["found"].startswith(f"{ELSEWHERE}: ")
        assert "firewalls" in row["hint"]

    async def test_one_that_is_silent_is_not_asked(self, migrated: Own) -> None:
        await begun(migrated)
        name = await migrated.add()
        await migrated.run("UPDATE nodes SET seen_at = seen_at - interval '16 seconds'")
        assert f"{name}: reach" not in await migrated.told()


async def begun(own: Own) -> None:
    """Creates the server's secret, as a first server does."""
    from stoker.store.secret import ServerSecret

    folder = own.root / "first"
    folder.mkdir()
    database = Database(own.url, connections=1)
    await ServerSecret(folder, waits=True).agree(database)
    await database.close()


class TestBlobs:
    async def test_a_folder_that_nodes_elsewhere_need(self, migrated: Own, tmp_path: Path) -> None:
        await begun(migrated)
        await migrated.add()
        (tmp_path / "blobs").mkdir()
        rows = await migrated.told(STOKER_BLOB_URL=f"file://{tmp_path}/blobs")
        assert rows["blob store"]["status"] == "ok"
        row = rows["blob store: shared"]
        assert row["status"] == "warn"
        assert "1 of 1 nodes" in row["found"]
        assert "share" in row["hint"]

    async def test_a_folder_that_is_not_there(self, migrated: Own, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/none"
        assert (await migrated.told(STOKER_BLOB_URL=url))["blob store"]["status"] == "ok"
        await begun(migrated)
        await migrated.add()
        row = (await migrated.told(STOKER_BLOB_URL=url))["blob store"]
        assert (row["status"], row["found"]) == ("fail", f"{tmp_path}/none does not exist")
        assert not (tmp_path / "none").exists()

    async def test_none_is_set(self, migrated: Own) -> None:
        await begun(migrated)
        await migrated.add()
        await migrated.add()
        row = (await migrated.told())["blob store"]
        assert row["status"] == "fail"
        assert "STOKER_BLOB_URL" in row["found"]

    async def test_it_cannot_be_written(self, migrated: Own, tmp_path: Path) -> None:
        folder = tmp_path / "blobs"
        folder.mkdir()
        # No user, root included, can create a folder at the path of a file.
        (folder / "probe").write_bytes(b"")
        row = (await migrated.told(STOKER_BLOB_URL=f"file://{folder}"))["blob store"]
        assert row["status"] == "fail"
        assert "write permission" in row["hint"]


def test_nothing_without_a_shared_database(tmp_path: Path) -> None:
    rows = told(Cli(NOBODY, None, {"STOKER_DATA_DIR": str(tmp_path)}))
    assert [*rows] == ["server"]


def _free_port() -> int:
    """Returns a port on which no process listens."""
    return postgres._free_port()
