"""What the operating system is asked of files and sockets."""

import array
import asyncio
import fcntl
import resource
import termios

_MOST_FILES = 65_536
"""Some libraries go through all numbers that a file may have."""


def raise_open_files() -> int:
    """Have the process open as many files as it may; returns how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that the kernel keeps for the peer, which has not taken them. It asks for more only
    once a third of megabytes has gone, so without these a slow reader would look like none.
    """
    count = array.array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):
        # Closed meanwhile, or no socket that could tell.
        return 0
    return count[0]
