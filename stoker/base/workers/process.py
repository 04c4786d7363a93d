"""Worker side of worker processes. A module that `WorkerPool` runs calls `serve` with its function.

The input's memory and CPU costs fall on this process. The process ends with its server, and the
server may end it at any time.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from stoker import sandbox
from stoker.base.workers.messages import LENGTH, Reply, WorkerLimits, frame

Fetch = Callable[[bytes], bytes]
"""Requests data from the server. Raises `OSError` if the server has ended."""


def serve(work: Callable[[bytes, Fetch], bytes]) -> None:
    """Answers questions until the server closes the pipe."""
    sandbox.die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries that print must not write between the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    first = _read()
    if first is None:
        return
    limits = msgspec.msgpack.decode(first, type=WorkerLimits)
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))

    def fetch(request: bytes) -> bytes:
        _write(output, frame(Reply(request=request)))
        content = _read()
        if content is None:
            raise OSError("the server has ended")
        return content

    while (question := _read()) is not None:
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s or 0)
        reply = _reply(work, question, fetch)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(output, frame(reply))


def _reply(work: Callable[[bytes, Fetch], bytes], question: bytes, fetch: Fetch) -> Reply:
    try:
        return Reply(result=work(question, fetch), peak_bytes=_peak())
    except MemoryError:
        return Reply(is_out_of_memory=True, peak_bytes=_peak())
    except Exception as error:
        return Reply(trouble=repr(error)[:1000], peak_bytes=_peak())


def _peak() -> int:
    # `getrusage` would include the server's size at the time of the fork.
    status = Path("/proc/self/status").read_text().splitlines()
    kib = next((line.split()[1] for line in status if line.startswith("VmHWM:")), "0")
    return int(kib) * 1024


def _read() -> bytes | None:
    """Returns the next frame, or None at the end."""
    head = sys.stdin.buffer.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return sys.stdin.buffer.read(length)


def _write(output: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(output, view) :]
