"""Renders chat templates in a separate process that can be killed.

A template comes with the model and determines its own time and memory. A single line of it may
request a string of a gigabyte or three nested loops, often within one call of C. So it runs under
limits of the kernel. If it exceeds one, a new process replaces its process. A thread of the replica
could not be limited like this.

The processes are forked before the model is loaded. They stay small and contain no threads or locks
of the engine. A keeper process, which runs no template, forks a renderer on demand. The replica
talks to the renderer directly. Requests are JSON, replies are msgpack.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import resource
import signal
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import jinja2
import msgspec

from stoker import sandbox

log = logging.getLogger(__name__)

CPU_S = 1.0
"""Maximum CPU time of one rendering in seconds. An ordinary one takes a thousandth of that."""
WAITS_S = 20.0
"""Maximum elapsed time of one rendering in seconds, for a busy machine."""
MEMORY_BYTES = 128 << 20
"""Base memory limit in bytes. `MEMORY_TIMES` times the size of the input is added."""
MEMORY_TIMES = 16
OUTPUT_CHARACTERS = 2 << 20
"""Base limit of the text in characters. `OUTPUT_TIMES` times the size of the input is added."""
OUTPUT_TIMES = 4

_LENGTH = struct.Struct("<Q")
_NUMBER = struct.Struct("<q")
_LATE_S = WAITS_S * 2
"""Timeout in seconds after which even the end of the renderer is overdue."""


class TemplateLimitError(ValueError):
    """A template exceeded a limit. The message names the limit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the model's chat template {what}")


class TemplateDataError(Exception):
    """The input does not fit the template."""


class _Reply(msgspec.Struct, frozen=True):
    text: str = ""
    refused: str | None = None
    """The template's own error: transformers' `raise_exception`, or a fault in the template."""
    unfit: str | None = None
    limit: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Reply).decode
_Asked = tuple[int, str | None, dict[str, Any]]
"""Number of a template, the template itself if it is new, and its arguments."""


class Renderer:
    """The replica's side of the renderer. Thread-safe: one rendering at a time."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_LATE_S)
        # The child processes are copies of this one. Within walls, they may not read their own
        # size.
        base_bytes = _virtual_bytes()
        keeper = _forked(lambda: _keep(theirs, base_bytes), theirs)
        theirs.close()
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        """Socket of the current renderer. Empty if none runs."""
        self._pid = 0
        self._known: list[str] = []
        """Templates that the current renderer knows."""
        weakref.finalize(self, _end_keeper, self._control, self._ends, keeper)

    def render(self, template: str, arguments: Mapping[str, Any]) -> str:
        """Returns the text that transformers' `render_jinja_template` creates for one conversation.

        Args:
            arguments: arguments of that function without the template, as JSON.

        Raises:
            jinja2.TemplateError: the template rejects the conversation.
            TemplateDataError: the conversation does not fit the template.
            TemplateLimitError: the template exceeds a limit. The next rendering is unaffected.
        """
        with self._lock:
            reply = self._asked(template, arguments)
        if reply.limit is not None:
            raise TemplateLimitError(reply.limit)
        if reply.unfit is not None:
            raise TemplateDataError(reply.unfit)
        if reply.refused is not None:
            raise jinja2.TemplateError(reply.refused)
        return reply.text

    def _asked(self, template: str, arguments: Mapping[str, Any]) -> _Reply:
        end = self._ends[0] if self._ends else self._begin()
        number = self._known.index(template) if template in self._known else len(self._known)
        is_news = number == len(self._known)
        if is_news:
            self._known.append(template)
        request = [number, template if is_news else None, arguments]
        try:
            _send(end, json.dumps(request, default=_placeholder).encode())
            if (content := _receive(end)) is not None:
                return _decode(content)
        except (OSError, msgspec.DecodeError):
            # The renderer is late or was killed during a reply. If the walls forbid the signal, it
            # ends when its time limit expires.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)
        return _Reply(limit=self._why_ended(end))

    def _begin(self) -> socket.socket:
        self._control.send(b"n")
        content, descriptors, _, _ = socket.recv_fds(self._control, _NUMBER.size, 1)
        if not descriptors:
            raise RuntimeError("the process that renders chat templates cannot be started")
        (self._pid,) = _NUMBER.unpack(content)
        self._known = []
        end = socket.socket(fileno=descriptors[0])
        end.settimeout(_LATE_S)
        self._ends.append(end)
        return end

    def _why_ended(self, end: socket.socket) -> str:
        self._ends.clear()
        end.close()
        (status,) = _NUMBER.unpack(self._control.recv(_NUMBER.size))
        if -status in (signal.SIGPROF, signal.SIGALRM):
            return _TOO_LONG
        return f"ends the process that renders it (status {status})"


_TOO_LONG = f"takes longer than {CPU_S:g} s"
_TOO_MUCH = f"takes more than {MEMORY_BYTES >> 20} MiB of memory"
_TOO_DEEP = "calls itself too deeply"


def _placeholder(value: Any) -> str:
    # Same as transformers' text for values that are not plain data.
    return f"<{type(value).__name__}>"


def _end_keeper(control: socket.socket, ends: list[socket.socket], keeper: int) -> None:
    for end in [*ends, control]:
        end.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(keeper, 0)


def _send(end: socket.socket, content: bytes) -> None:
    end.sendall(_LENGTH.pack(len(content)) + content)


def _receive(end: socket.socket) -> bytes | None:
    """Returns the next message. None at the end."""
    head = _read(end, _LENGTH.size)
    return None if head is None else _read(end, *_LENGTH.unpack(head))


def _read(end: socket.socket, size: int) -> bytes | None:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        count = end.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return bytes(content)


# --- the processes below the replica ---


def _forked(run: Callable[[], None], kept: socket.socket) -> int:
    """Forks a process that calls `run`. Only its log and one socket stay open."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        sandbox.die_with_parent()
        if os.getppid() == parent:
            for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.closerange(3, kept.fileno())
            os.closerange(kept.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            run()
            code = 0
    except BaseException:
        log.exception("chat template renderer failed")
    finally:
        # The replica's exit handlers must not run here.
        os._exit(code)


def _keep(control: socket.socket, held: int) -> None:
    gc.freeze()
    while control.recv(1):
        ours, theirs = socket.socketpair()
        pid = _forked(partial(_serve, ours, held), ours)
        ours.close()
        socket.send_fds(control, [_NUMBER.pack(pid)], [theirs.fileno()])
        theirs.close()
        _, status = os.waitpid(pid, 0)
        # If the replica has ended, no process needs the status.
        with contextlib.suppress(BrokenPipeError):
            control.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _serve(end: socket.socket, held: int) -> None:
    templates: list[str] = []
    while (content := _receive(end)) is not None:
        number, template, arguments = cast("_Asked", json.loads(content))
        if template is not None:
            templates.append(template)
        room = held + MEMORY_BYTES + MEMORY_TIMES * len(content)
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, WAITS_S)
        longest = OUTPUT_CHARACTERS + OUTPUT_TIMES * len(content)
        reply = _encode(_rendered(templates[number], arguments, longest))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(end, reply)


def _rendered(template: str, arguments: Mapping[str, Any], longest: int) -> _Reply:
    library: Any = importlib.import_module("transformers.utils.chat_template_utils")
    text, limit = "", None
    try:
        (text,), _ = library.render_jinja_template(chat_template=template, **arguments)
        text.encode()
        if len(text) > longest:
            limit = f"produces more than {longest} characters"
    except MemoryError:
        limit = _TOO_MUCH
    except RecursionError:
        limit = _TOO_DEEP
    except jinja2.TemplateError as error:
        # Templates reject unknown input, such as roles out of order, by raising.
        return _Reply(refused=_line(error))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return _Reply(unfit=_line(error))
    return _Reply(limit=limit) if limit else _Reply(text)


def _line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return line.encode("utf-8", "replace").decode()


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
