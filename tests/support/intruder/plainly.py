"""Runs a program as a user who is not root: `plainly.py UID PROGRAM ARGUMENTS…`, by root.

Where an interpreter lies in a folder that only root may enter, as below /root, it is shown to the
program alone, in a mount namespace of its own.
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
    """Let all enter what is below the first folder that they may not."""
    closed = [one for one in folder.parents if not one.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return
    _libc.unshare(_CLONE_NEWNS)
    _mount(None, Path("/"), None, _PRIVATE, b"")
    held = os.open(folder, os.O_PATH)
    _mount(b"none", closed[-1], b"tmpfs", 0, b"mode=755")
    folder.mkdir(parents=True)
    _mount(f"/proc/self/fd/{held}".encode(), folder, None, _BIND, b"")
    os.close(held)


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
