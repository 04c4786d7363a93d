"""Landlock: limits the files that a process may open and the processes that it may signal. It needs
no privilege.

Files that are already open stay open. https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from stoker.sandbox import kernel

# These numbers are the same on all processors.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_OF = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Maps a Landlock version to all file rights that it supports."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

LIST = _READ_DIR
READ = _READ_FILE | _READ_DIR
RUN = READ | _EXECUTE
# Excludes links, sockets and pipes, so that a reader outside of the sandbox finds only plain files.
WRITE = READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV
NAME = _WRITE_FILE

_TCP = 0b11
_TCP_SINCE, _SCOPES_SINCE = 4, 6
_ABSTRACT_SOCKETS, _SIGNALS = 0b01, 0b10

_held: list[int] = []
"""Descriptors of paths in /proc that rules refer to. Without an open descriptor /proc recreates the
inode, which the rule then does not match.
"""


def version() -> int:
    """Returns the version of the kernel's Landlock. 0 if it has none."""
    try:
        return kernel.syscall(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def scopes_signals() -> bool:
    return version() >= _SCOPES_SINCE


class Ruleset:
    """Landlock rules. After `enforce`, everything that was not allowed is forbidden."""

    def __init__(
        self, *, tcp: bool, files: bool = False, sockets: bool = False, signals: bool = False
    ) -> None:
        """Raises `OSError` if Landlock is not available, or if everything is allowed.

        Args:
            tcp: True if TCP is allowed.
            files: True if all files are allowed.
            sockets: True if abstract sockets of other processes are allowed.
            signals: True if signals to other processes are allowed.
        """
        known = version()
        self._handled = max(
            (rights for since, rights in _ALL_OF.items() if since <= known and not files), default=0
        )
        nets = _TCP if known >= _TCP_SINCE and not tcp else 0
        scopes = (0 if sockets else _ABSTRACT_SOCKETS) | (0 if signals else _SIGNALS)
        scopes = scopes if known >= _SCOPES_SINCE else 0
        self.scopes_signals = bool(scopes & _SIGNALS)
        attributes = struct.pack("=QQQ", self._handled, nets, scopes)
        # Older kernels accept a longer structure if the unknown part is zero.
        self._descriptor = kernel.syscall(
            _CREATE_RULESET,
            ctypes.create_string_buffer(attributes, len(attributes)),
            len(attributes),
            0,
        )

    def allow(self, rights: int, paths: Iterable[Path]) -> None:
        """Allows the rights for files, and for the content of folders. Missing paths are
        ignored.
        """
        if not rights & self._handled:
            return
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            self._add(rights & self._handled, descriptor)
            if path.is_relative_to("/proc"):
                _held.append(descriptor)
            else:
                os.close(descriptor)

    def _add(self, rights: int, descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        attributes = struct.pack("=Qi", rights, descriptor)
        kernel.syscall(
            _ADD_RULE, self._descriptor, _PATH_BENEATH, ctypes.create_string_buffer(attributes), 0
        )

    def enforce(self) -> None:
        """Restricts this thread and all of its future children permanently. Needs
        `no_new_privs`.
        """
        kernel.syscall(_RESTRICT_SELF, self._descriptor, 0)
        os.close(self._descriptor)
