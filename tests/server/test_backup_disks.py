"""Backups and restores on full disks and in read-only folders."""

import shutil
from pathlib import Path

import pytest

from stoker.server.backups.archive import BackupError
from stoker.server.backups.creating import create
from stoker.server.backups.restoring import restore
from stoker.store.db import Database
from tests.cli.support import Cli
from tests.support.disks import read_only, small_disk

NOBODY = Cli("http://127.0.0.1:9")
MIB = 1024 * 1024
BLOB = b"weights!" * (3 * MIB // 8)


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "model").write_bytes(BLOB)
    database = Database(f"sqlite+aiosqlite:///{folder}/stoker.db")
    await database.migrate()
    await database.close()
    return folder


def fill_up(disk: Path) -> None:
    """Leaves one MiB of a disk, as another process may do during the copy."""
    if not (disk / "other").exists():
        free = shutil.disk_usage(disk).free
        (disk / "other").write_bytes(bytes(free - MIB))


def test_a_disk_that_fills_up_during_a_backup(data_dir: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        with pytest.raises(BackupError, match=r"disk of .*/disk is full\. Free space there"):
            create(data_dir, disk / "a.tar", advance=lambda _: fill_up(disk))
        assert [path.name for path in disk.iterdir()] == ["other"]
        (disk / "other").unlink()
        assert create(data_dir, disk / "a.tar").missing == []


def test_a_disk_that_fills_up_during_a_restore(data_dir: Path, tmp_path: Path) -> None:
    create(data_dir, tmp_path / "a.tar")
    with small_disk(tmp_path / "disk", 8) as disk:
        new = disk / "data"
        with pytest.raises(BackupError, match=r"disk of .*/data is full\. Free space there"):
            restore(tmp_path / "a.tar", new, advance=lambda _: fill_up(disk))
        assert [path.name for path in new.iterdir()] == ["lock"]
        (disk / "other").unlink()
        restore(tmp_path / "a.tar", new)
        assert (new / "blobs" / "model").read_bytes() == BLOB


def test_a_disk_that_is_too_small(data_dir: Path, tmp_path: Path) -> None:
    create(data_dir, tmp_path / "a.tar")
    with small_disk(tmp_path / "disk", 2) as disk:
        for command, file, folder in (
            ("backup", disk / "a.tar", data_dir),
            ("restore", tmp_path / "a.tar", disk / "data"),
        ):
            done = NOBODY.run(command, str(file), "--data-dir", str(folder))
            assert done.returncode == 1
            assert "The backup needs 0.0 GB" in " ".join(done.stderr.split())
        assert [path.name for path in disk.rglob("*")] == ["data", "lock"]


def test_a_read_only_folder(data_dir: Path, tmp_path: Path) -> None:
    # A backup leaves SQLite's working files, with which a read-only folder can be read.
    create(shutil.copytree(data_dir, tmp_path / "copy"), tmp_path / "a.tar")
    with read_only(data_dir, tmp_path / "snapshot") as snapshot:
        for command, file, folder, message in (
            ("backup", tmp_path / "b.tar", snapshot, "Copy the folder to a writable place"),
            ("backup", snapshot / "b.tar", data_dir, "Read-only file system"),
            ("restore", tmp_path / "a.tar", snapshot / "new", "is read-only. Mount it writable"),
            ("serve", "", snapshot, "is read-only. Mount it writable"),
        ):
            named = [str(file)] if file else []
            done = NOBODY.run(command, *named, "--data-dir", str(folder))
            assert done.returncode == 1
            assert message in " ".join(done.stderr.split())
    assert {path.name for path in data_dir.iterdir()} == {"blobs", "stoker.db"}
    assert {path.name for path in tmp_path.iterdir()} == {"data", "copy", "a.tar", "snapshot"}
