"""Backups of real servers under load restore into servers that answer the same, or are rejected
with the reason.
"""

import io
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from stoker.server.backups import snapshots
from stoker.server.backups.archive import SUMS, BackupError
from stoker.server.backups.creating import create
from stoker.server.backups.restoring import restore
from tests.artifacts.support import Uploading
from tests.cli.support import Cli
from tests.deployments.support import bert, call, deploy, upload
from tests.support.server import Server, running

# A fleet has its data in PostgreSQL.
pytestmark = pytest.mark.one_machine

NOBODY = Cli("http://127.0.0.1:9")
ARTIFACTS = "/v1/model-artifacts"


def secret_of(client: httpx.Client) -> str:
    return client.headers["authorization"].removeprefix("Bearer ")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, httpx.Client]]:
    """Runs a server with one deployed model."""
    with running(tmp_path_factory.mktemp("busy") / "data") as server, server.account() as client:
        deploy(client, upload(server, client), "kept")
        call(client, "kept", wait=120).raise_for_status()
        yield server, client


@pytest.fixture(scope="module")
def saved(busy: tuple[Server, httpx.Client], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a backup of the running server."""
    file = tmp_path_factory.mktemp("saved") / "a.tar"
    answer = NOBODY.json("backup", str(file), "--data-dir", str(busy[0].data_dir))
    assert (answer["file"], answer["size"]) == (str(file), file.stat().st_size)
    assert (answer["artifacts"], answer["missing"], answer["has_secret"]) == (1, [], True)
    return file


def names(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return archive.getnames()


class TestRoundTrip:
    def test_the_restored_server_answers_the_same(
        self, busy: tuple[Server, httpx.Client], saved: Path, tmp_path: Path
    ) -> None:
        server, client = busy
        target = tmp_path / "elsewhere" / "data"
        done = NOBODY.run("restore", str(saved), "--data-dir", str(target))
        assert done.returncode == 0, done.stderr
        assert f"stoker serve --data-dir {target}" in " ".join(done.stderr.split())
        for name in ("operator-key", "account-key"):
            assert (target / name).stat().st_mode & 0o777 == 0o600
            assert (target / name).read_text() == (server.data_dir / name).read_text()
        with running(target) as second, second.client(secret_of(client)) as same:
            assert call(same, "kept", wait=120).json() == call(client, "kept").json()
            assert second.operator_key == server.operator_key
            # The servers have separate data now.
            deploy(same, upload(second, same), "new")
            assert call(client, "new").status_code == 404

    def test_standard_tools_read_it(self, saved: Path, tmp_path: Path) -> None:
        subprocess.run(["tar", "xf", saved, "-C", tmp_path], check=True)
        done = subprocess.run(
            ["sha256sum", "--check", "--strict", SUMS],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        checked = {line.partition(": ")[0] for line in done.stdout.splitlines()}
        assert checked == {*names(saved)} - {SUMS}

    def test_only_its_owner_reads_it(self, saved: Path) -> None:
        assert saved.stat().st_mode & 0o777 == 0o600

    def test_without_the_secret(self, busy: tuple[Server, httpx.Client], tmp_path: Path) -> None:
        server, _ = busy
        folder = ("--data-dir", str(server.data_dir))
        answer = NOBODY.json("backup", str(tmp_path), "--without-secret", *folder)
        assert answer["has_secret"] is False
        # A folder gets a file that is named after the time.
        (file,) = tmp_path.iterdir()
        assert answer["file"] == str(file)
        assert not {"operator-key", "account-key", "server-secret"} & {*names(file)}

    def test_under_load(self, busy: tuple[Server, httpx.Client], tmp_path: Path) -> None:
        """Models are uploaded and deleted during the backups. Each backup has the files of all its
        artifacts.
        """
        server, _ = busy
        stop = threading.Event()

        def churn() -> None:
            with server.account("churn") as client:
                while not stop.is_set():
                    artifact = upload(server, client)
                    client.delete(f"{ARTIFACTS}/{artifact}").raise_for_status()

        churning = threading.Thread(target=churn)
        churning.start()
        try:
            made = [create(server.data_dir, tmp_path / f"{number}.tar") for number in range(5)]
        finally:
            stop.set()
            churning.join()
        for number, backup in enumerate(made):
            assert backup.missing == []
            data_dir = tmp_path / f"data-{number}"
            restore(backup.path, data_dir)
            database = sqlite3.connect(data_dir / "stoker.db")
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = database.execute(snapshots.MODEL_FILES).fetchall()
            database.close()
            assert len(rows) >= len([*bert().iterdir()])
            for key, size in rows:
                assert (data_dir / "blobs" / key).stat().st_size == size


class TestChanges:
    """The data folder changes at the worst moments of a backup."""

    @pytest.fixture
    def data_dir(self, busy: tuple[Server, httpx.Client], tmp_path: Path) -> Path:
        create(busy[0].data_dir, tmp_path / "b.tar")
        restore(tmp_path / "b.tar", tmp_path / "data")
        (tmp_path / "b.tar").unlink()
        return tmp_path / "data"

    def weights(self, data_dir: Path) -> Path:
        return max((data_dir / "blobs").rglob("*"), key=lambda path: path.stat().st_size)

    def test_a_model_that_is_deleted_during_the_copy(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first copy of the database names files that are deleted before they are copied."""
        take, made = snapshots.take, list[int]()

        def deleting(database: Path, target: Path) -> snapshots.DatabaseCopy:
            copy = take(database, target)
            if not made:
                self.weights(data_dir).unlink()
                with sqlite3.connect(database) as connection:
                    connection.execute("UPDATE artifacts SET live_upload_id = NULL")
            made.append(copy.artifacts)
            return copy

        monkeypatch.setattr(snapshots, "take", deleting)
        backup = create(data_dir, data_dir.parent / "c.tar")
        assert (made, backup.artifacts, backup.missing) == ([1, 0], 0, [])

    def test_files_that_were_already_missing_are_reported(self, data_dir: Path) -> None:
        lost = self.weights(data_dir)
        lost.unlink()
        done = NOBODY.run("backup", str(data_dir.parent / "c.tar"), "--data-dir", str(data_dir))
        assert done.returncode == 0
        key = lost.relative_to(data_dir / "blobs").as_posix()
        assert f"such as {key}. Their models do not load" in " ".join(done.stderr.split())
        # The rest is saved.
        assert restore(data_dir.parent / "c.tar", data_dir.parent / "other").has_secret

    def test_deletions_during_every_attempt(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take, counter = snapshots.take, itertools.count()

        def changing(database: Path, target: Path) -> snapshots.DatabaseCopy:
            copy = take(database, target)
            copy.files[f"artifacts/gone-{next(counter)}"] = 1
            return copy

        monkeypatch.setattr(snapshots, "take", changing)
        with pytest.raises(BackupError, match=r"during each of 5 attempts\. Repeat"):
            create(data_dir, data_dir.parent / "c.tar")
        assert [path.name for path in data_dir.parent.iterdir()] == ["data"]

    def test_a_file_that_grows_during_the_copy(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A part of an open upload arrives between two attempts. The later bytes count."""
        take = snapshots.take
        growing = data_dir / "blobs" / "artifacts" / "open"
        made = list[int]()

        def appending(database: Path, target: Path) -> snapshots.DatabaseCopy:
            copy = take(database, target)
            made.append(1)
            growing.write_bytes(b"part" * len(made))
            if len(made) == 1:
                copy.files["artifacts/gone"] = 1
            return copy

        monkeypatch.setattr(snapshots, "take", appending)
        create(data_dir, data_dir.parent / "c.tar")
        restore(data_dir.parent / "c.tar", data_dir.parent / "other")
        assert (data_dir.parent / "other/blobs/artifacts/open").read_bytes() == b"partpart"

    def test_ctrl_c_leaves_nothing(self, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(_count: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            create(data_dir, data_dir.parent / "c.tar", advance=interrupt)
        assert [path.name for path in data_dir.parent.iterdir()] == ["data"]
        create(data_dir, data_dir.parent / "c.tar")
        with pytest.raises(KeyboardInterrupt):
            restore(data_dir.parent / "c.tar", data_dir.parent / "new", advance=interrupt)
        assert [path.name for path in (data_dir.parent / "new").iterdir()] == ["lock"]

    def test_a_killed_restore_can_be_repeated(self, saved: Path, tmp_path: Path) -> None:
        (tmp_path / "restoring" / "blobs").mkdir(parents=True)
        (tmp_path / "restoring" / "blobs" / "part").write_bytes(b"x")
        restore(saved, tmp_path)
        assert (tmp_path / "stoker.db").exists()
        assert not (tmp_path / "restoring").exists()


def replaced_by(other: bytes) -> Callable[[bytes], bytes]:
    def replaced(_content: bytes) -> bytes:
        return other

    return replaced


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_end(content: bytes) -> bytes:
    """Cuts off the checksums, as if the disk had been full between two files."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return content[: archive.getmember(SUMS).offset]


def flipped(content: bytes) -> bytes:
    """Changes one bit of the weights."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = max(archive.getmembers(), key=lambda member: member.size)
    at = member.offset_data + member.size // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def with_manifest(**fields: object) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        return rewritten(content, lambda name, body: (name, edited(name, body)))

    def edited(name: str, body: bytes) -> bytes:
        if name != "manifest.json":
            return body
        return json.dumps(json.loads(body) | fields).encode()

    return changed


def with_name(new: str) -> Callable[[bytes], bytes]:
    """Renames the operator's key."""
    return lambda content: rewritten(
        content, lambda name, body: (new if name == "operator-key" else name, body)
    )


def rewritten(content: bytes, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    result = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=result, mode="w") as new,
    ):
        for member in old:
            source = old.extractfile(member)
            assert source
            name, body = change(member.name, source.read())
            member.name, member.size = name, len(body)
            new.addfile(member, io.BytesIO(body))
    return result.getvalue()


class TestRejected:
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (replaced_by(b""), "not a backup of Stoker"),
            (replaced_by(b"#!/bin/sh\n" * 9999), "not a backup of Stoker"),
            (cut, "incomplete: its end is missing"),
            (without_end, "incomplete: its end is missing"),
            (flipped, "differs from the file that was saved. Use another backup"),
            (
                with_manifest(schema="9999", oldest_schema="9998", release="6.0.0"),
                "Install release 6.0.0 or a newer",
            ),
            (with_manifest(format=2, release="7.0.0"), "Install release 7.0.0 or a newer one"),
            (with_manifest(format="x"), "manifest.json is damaged"),
            (with_name("../outside"), "unexpected entry: '../outside'"),
            (with_name("/tmp/outside"), "unexpected entry: '/tmp/outside'"),
            (with_name("blobs/../../outside"), "unexpected entry"),
            (with_name("models/x"), "unexpected entry"),
            (with_name("lock"), "unexpected entry: 'lock'"),
            (with_name("blobs/other"), "other differs from the file that was saved"),
        ],
    )
    def test_a_damaged_backup(
        self, saved: Path, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
    ) -> None:
        (tmp_path / "a.tar").write_bytes(damage(saved.read_bytes()))
        done = NOBODY.run("restore", str(tmp_path / "a.tar"), "--data-dir", str(tmp_path / "data"))
        assert done.returncode == 1
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        # The folder stays empty.
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]
        assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "data"}

    def test_over_a_running_server(self, busy: tuple[Server, httpx.Client], saved: Path) -> None:
        server, client = busy
        done = NOBODY.run("restore", str(saved), "--data-dir", str(server.data_dir))
        assert done.returncode == 1
        assert server.process
        assert f"in use by process {server.process.pid}" in " ".join(done.stderr.split())
        assert call(client, "kept", wait=120).status_code == 200

    def test_into_a_folder_with_data(self, saved: Path, tmp_path: Path) -> None:
        restore(saved, tmp_path / "data")
        before = (tmp_path / "data" / "stoker.db").stat()
        done = NOBODY.run("restore", str(saved), "--data-dir", str(tmp_path / "data"))
        assert done.returncode == 1
        assert "is not empty: it holds 'account-key'" in " ".join(done.stderr.split())
        assert (tmp_path / "data" / "stoker.db").stat() == before

    def test_a_file_that_exists(self, busy: tuple[Server, httpx.Client], saved: Path) -> None:
        size = saved.stat().st_size
        done = NOBODY.run("backup", str(saved), "--data-dir", str(busy[0].data_dir))
        assert done.returncode == 1
        assert "exists. Choose another name" in " ".join(done.stderr.split())
        assert saved.stat().st_size == size

    def test_a_folder_without_a_server(self, tmp_path: Path) -> None:
        done = NOBODY.run("backup", str(tmp_path / "a.tar"), "--data-dir", str(tmp_path))
        assert done.returncode == 1
        assert "Choose the server's folder with --data-dir" in " ".join(done.stderr.split())
        assert [*tmp_path.iterdir()] == []

    def test_a_folder_that_does_not_exist(self, saved: Path, tmp_path: Path) -> None:
        restore(saved, tmp_path / "data")
        target = tmp_path / "none" / "a.tar"
        done = NOBODY.run("backup", str(target), "--data-dir", str(tmp_path / "data"))
        assert done.returncode == 1
        assert f"There is no folder {target.parent}" in " ".join(done.stderr.split())

    @pytest.mark.parametrize("command", ["backup", "restore"])
    def test_a_disk_without_space(
        self, saved: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        restore(saved, tmp_path / "data")
        full = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=full))
        file = {"backup": tmp_path / "a.tar", "restore": saved}[command]
        folder = tmp_path / {"backup": "data", "restore": "new"}[command]
        done = NOBODY.run(command, str(file), "--data-dir", str(folder))
        assert done.returncode == 1
        assert "0.0 GB left" in " ".join(done.stderr.split())
        assert not (tmp_path / "a.tar").exists()

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("STOKER_DATABASE_URL", "postgresql://stoker@127.0.0.1/stoker"),
            ("STOKER_BLOB_URL", "s3://bucket/prefix"),
        ],
    )
    @pytest.mark.parametrize("command", ["backup", "restore"])
    def test_data_in_another_place(
        self, tmp_path: Path, command: str, variable: str, value: str
    ) -> None:
        cli = Cli("http://127.0.0.1:9", settings={variable: value})
        done = cli.run(command, str(tmp_path / "a.tar"))
        assert done.returncode == 2
        assert f"{variable} names another" in " ".join(done.stderr.split())


def test_a_terminated_backup_leaves_no_file_at_the_target(
    busy: tuple[Server, httpx.Client], tmp_path: Path
) -> None:
    """The next backup removes the leftover of a killed one."""
    data_dir, target = busy[0].data_dir, tmp_path / "a.tar"
    program = (
        "import sys, time; from pathlib import Path; from stoker.server.backups import creating;"
        "creating.create(Path(sys.argv[1]), Path(sys.argv[2]), "
        "begin=lambda _: (print('begun', flush=True), time.sleep(60)))"
    )
    command = [sys.executable, "-c", program, str(data_dir), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    create(data_dir, target)
    assert [*tmp_path.iterdir()] == [target]


def test_an_upload_that_was_open_can_be_continued(
    busy: tuple[Server, httpx.Client], tmp_path: Path
) -> None:
    server, client = busy
    session = Uploading.open(server, client)
    session.put_folder(bert())
    restore(create(server.data_dir, tmp_path / "a.tar").path, tmp_path / "data")
    with (
        running(tmp_path / "data") as second,
        second.client(secret_of(client)) as same,
    ):
        path = f"{ARTIFACTS}/{session.artifact_id}"
        upload_id = same.get(path).raise_for_status().json()["upload_id"]
        done = same.post(f"{path}/uploads/{upload_id}/complete").raise_for_status().json()
        assert done["artifact"]["status"] == "ready"
