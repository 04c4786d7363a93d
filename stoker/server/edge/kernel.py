"""Operating system calls for files and sockets."""

import array
import asyncio
import fcntl
import resource
import termios

_MOST_FILES = 65_536
"""Maximum number of open files. Some libraries iterate over all possible file numbers."""


def raise_open_files() -> int:
    """Raises the process's limit of open files to the maximum allowed. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def unsent(transport: asyncio.Transport) -> int:
    """Returns the number of bytes that the kernel holds because the peer has not accepted them. The
    kernel requests more data only after a third of its several megabytes of buffer is free. Without
    this count a slow reader would look like none.
    """
    count = array.array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):
        # The socket was closed meanwhile, or the transport has no socket with this information.
        return 0
    return count[0]
