"""Temporary folder of one process. The next process removes the folders of killed processes."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

NEW_S = 60.0
"""Maximum time in seconds between the creation of a folder and its lock."""


class TemporaryFolder:
    """A temporary folder that the kernel keeps locked until its process ends for any reason."""

    def __init__(self, prefix: str, base: Path | None = None) -> None:
        """Creates the folder with mode 0700. Removes abandoned folders of the same prefix and user.

        Args:
            prefix: prefix of the folder's name. No other kind of folder may use it.
            base: parent folder. Default: the system's folder for temporary files.
        """
        base = base or Path(tempfile.gettempdir())
        remove_abandoned(base, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._lock = _locked(self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(base: Path, prefix: str) -> None:
    """Removes the folders of killed processes. A new folder is kept for `NEW_S`."""
    for path in base.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_old = time.time() - status.st_mtime > NEW_S
            if is_old and status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
                lock = _locked(path)
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)


def _locked(path: Path) -> int | None:
    """Returns a descriptor that holds a folder's lock, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
