"""Runs a program as a user other than root. Root calls it: `plainly.py UID PROGRAM ARGUMENTS…`.

If the interpreter is in a folder that only root may enter, such as /root, a private mount namespace
exposes it to the program.
"""

import ctypes
import os
import stat
import sys
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_PRIVATE, _BIND = 0x44000, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: bytes | None, target: Path, kind: bytes | None, flags: int, data: bytes) -> None:
    if _libc.mount(source, bytes(target), kind, flags, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _show(folder: Path) -> None:
    """Makes a folder accessible if one of its parents is closed to other users."""
    closed = [parent for parent in folder.parents if not parent.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return
    _libc.unshare(_CLONE_NEWNS)
    _mount(None, Path("/"), None, _PRIVATE, b"")
    descriptor = os.open(folder, os.O_PATH)
    _mount(b"none", closed[-1], b"tmpfs", 0, b"mode=755")
    folder.mkdir(parents=True)
    _mount(f"/proc/self/fd/{descriptor}".encode(), folder, None, _BIND, b"")
    os.close(descriptor)


def main() -> None:
    user, program = int(sys.argv[1]), sys.argv[2:]
    _show(Path(sys.base_prefix))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.environ["HOME"] = "/nonexistent"
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
