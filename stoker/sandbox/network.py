"""Separate network namespace without a connection to other networks. Unix sockets still work."""

import ctypes
import fcntl
import logging
import os
import socket
import struct
from pathlib import Path

from stoker.sandbox.kernel import libc

log = logging.getLogger(__name__)

_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def leave() -> tuple[bool, bool]:
    """Enters a new network namespace. Returns whether this succeeded, and whether it created a user
    namespace.
    """
    if libc.unshare(_CLONE_NEWNET) == 0:
        _raise_loopback()
        return True, False
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        log.debug("no namespaces: error %d", ctypes.get_errno())
        return False, False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError:
        log.warning("user namespace could not be mapped")
    _raise_loopback()
    return True, True


def _raise_loopback() -> None:
    """Enables the namespace's loopback interface: gloo, in vLLM, requires an address even for a
    group of one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control_socket:
        try:
            fcntl.ioctl(control_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        except OSError:
            log.warning("loopback of the network namespace stays down")
