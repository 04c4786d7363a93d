"""What a replica gives up before it touches a model: network, new privileges, core dumps."""

import ctypes
import fcntl
import logging
import os
import resource
import signal
import socket
import struct
import sys
from pathlib import Path

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def die_with_parent() -> None:
    """SIGKILL this process when the one that forked it ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tell_nobody() -> None:
    """Keep libraries from telling their makers that they are used, and others what they read.

    To be called before imports.
    """
    # OpenVINO and NNCF count their users over the network, and number them in the home folder.
    # They go on where this module is missing.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    # tiktoken keeps a copy of each file in the machine's /tmp, and reads that the next time.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""


def confine() -> None:
    """Drop what a replica does not need. Best effort: kernels and containers differ."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _be_first_to_go()
    if not _leave_network():
        log.warning("this kernel allows no network namespace: the replica keeps the network")


def _be_first_to_go() -> None:
    """Where memory runs out, the kernel is to end a replica and not the server."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        log.warning("the order in which the kernel ends processes could not be set")


def _leave_network() -> bool:
    """Enter a network namespace of its own, which has no way out. Unix sockets still work."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        _raise_loopback()
        return True
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError:
        log.warning("the user namespace could not be mapped")
    _raise_loopback()
    return True


def _raise_loopback() -> None:
    """The namespace's own loopback: gloo, in vLLM, wants an address even for a group of one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        except OSError:
            log.warning("the network namespace's loopback stays down")


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
