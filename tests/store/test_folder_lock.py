"""Two servers cannot write to one data folder. The second is rejected with the first one's process
id.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.store.folder_lock import FILE, FolderInUseError, FolderUnwritableError, lock, locked
from tests.cli.support import Cli
from tests.support.disks import small_disk
from tests.support.server import Server


@pytest.mark.parametrize("command", [("serve",), ("demo",)])
def test_a_second_server_is_refused(server: Server, command: tuple[str, ...]) -> None:
    """The second server prints one line with the first one's process id. The first keeps
    running.
    """
    done = Cli("http://127.0.0.1:9").run(
        *command, "--port", "0", "--data-dir", str(server.data_dir)
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert server.process
    assert f"is in use by process {server.process.pid}." in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    with server.client() as client:
        assert client.get("/health").status_code == 200


class TestLocked:
    def test_a_folder_by_another_path(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with (
            locked(tmp_path / "real", None),
            pytest.raises(FolderInUseError, match=f"process {os.getpid()}"),
            locked(tmp_path / "link", None),
        ):
            pass

    def test_a_database_of_another_folder(self, tmp_path: Path) -> None:
        url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
        with (
            locked(tmp_path / "a", url),
            pytest.raises(FolderInUseError, match=r"shared\.db is in use"),
            locked(tmp_path / "b", url),
        ):
            pass
        with locked(tmp_path / "b", url):
            pass

    def test_servers_of_a_postgresql_have_folders_of_their_own(self, tmp_path: Path) -> None:
        url = "postgresql+asyncpg://stoker@127.0.0.1/stoker"
        with locked(tmp_path / "a", url), locked(tmp_path / "b", url):
            pass

    @pytest.mark.parametrize("content", ["", "{", "12\n", json.dumps({"pid": 1, "host": "gone"})])
    def test_a_file_that_is_left_over_locks_nothing(self, tmp_path: Path, content: str) -> None:
        (tmp_path / FILE).write_text(content)
        with locked(tmp_path, None):
            assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()

    def test_names_another_machine(self, tmp_path: Path) -> None:
        descriptor = lock(tmp_path / FILE, "The data folder", "")
        (tmp_path / FILE).write_text(json.dumps({"pid": 1, "host": "container-a"}))
        with (
            pytest.raises(FolderInUseError, match="process 1 on container-a"),
            locked(tmp_path, None),
        ):
            pass
        os.close(descriptor)

    def test_full_disk(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", 1) as disk:
            (disk / "other").write_bytes(bytes(1024 * 1024))
            message = r"is on a full disk\. Free disk space, or"
            with pytest.raises(FolderUnwritableError, match=message), locked(disk, None):
                pass

    def test_a_parent_that_is_a_file(self, tmp_path: Path) -> None:
        """Other errors keep their own text."""
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError), locked(tmp_path / "file" / "data", None):
            pass

    def test_is_released_when_the_process_is_killed(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path; from stoker.store.folder_lock import lock;"
            "lock(Path(sys.argv[1]), '', ''); print('held', flush=True); time.sleep(60)"
        )
        path = str(tmp_path / FILE)
        with subprocess.Popen(
            [sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout and holder.stdout.readline() == "held\n"
            with pytest.raises(FolderInUseError, match=f"process {holder.pid}"):
                lock(tmp_path / FILE, "", "")
            holder.kill()
        os.close(lock(tmp_path / FILE, "", ""))
