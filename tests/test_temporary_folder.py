import os
import signal
import subprocess
import sys
from pathlib import Path

from stoker.base.temporary_folder import TemporaryFolder

PREFIX = "stoker-test-"
OPEN = """
import sys
from pathlib import Path
from stoker.base.temporary_folder import TemporaryFolder
folder = TemporaryFolder("stoker-test-", Path(sys.argv[1]))
print(folder.path, flush=True)
sys.stdin.read()
"""


def make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (0, 0), follow_symlinks=False)


def test_the_next_process_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        (folder / "socket").write_text("x")
        make_old(folder)
        # The process still runs, so its folder stays regardless of its age.
        TemporaryFolder(PREFIX, tmp_path).remove()
        assert (folder / "socket").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    following = TemporaryFolder(PREFIX, tmp_path)
    assert not folder.exists()
    following.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    other, new, file = tmp_path / "other", tmp_path / f"{PREFIX}new", tmp_path / f"{PREFIX}file"
    link = tmp_path / f"{PREFIX}link"
    for folder in (other, new):
        folder.mkdir()
    (other / "kept").write_text("x")
    file.write_text("x")
    link.symlink_to(other)
    make_old(other, file, link)
    TemporaryFolder(PREFIX, tmp_path).remove()
    assert {path.name for path in tmp_path.iterdir()} == {
        other.name,
        new.name,
        file.name,
        link.name,
    }
    assert (other / "kept").exists()
