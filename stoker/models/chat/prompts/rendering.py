"""Chat templates, rendered in a process of their own that may be ended.

A template comes with the model, and says itself how long it takes and how much it holds: one line
of it may ask for a string of a gigabyte or for three nested loops, and much of that happens within
one call of C. So it runs below limits of the kernel's, and where it meets one, a new process takes
its place. The same in a thread of the replica would be bounded by nothing.

The processes are forked before the model is loaded: they stay small, and nothing of the engine's
threads and locks is in them. A keeper, which runs no template, forks a renderer whenever one is
wanted; the replica speaks to the renderer itself. What goes there is JSON, what comes is msgpack.
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
"""What one rendering may compute; an ordinary one takes a thousandth of that."""
WAITS_S = 20.0
"""And how long it may take in all, on a machine that is busy with other things."""
MEMORY_BYTES = 128 << 20
"""What it may hold, beside so many times the size of what is rendered: """
MEMORY_TIMES = 16
OUTPUT_CHARACTERS = 2 << 20
"""The longest text, beside so many times the size of what is rendered: """
OUTPUT_TIMES = 4

_LENGTH = struct.Struct("<Q")
_NUMBER = struct.Struct("<q")
_LATE_S = WAITS_S * 2
"""When even the renderer's end is overdue."""


class TemplateLimitError(ValueError):
    """A template has met a limit; the message says which."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the model's chat template {what}")


class TemplateDataError(Exception):
    """What was to be rendered does not fit the template."""


class _Reply(msgspec.Struct, frozen=True):
    text: str = ""
    refused: str | None = None
    """What the template itself says of it: transformers' `raise_exception`, or a fault of its."""
    unfit: str | None = None
    limit: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Reply).decode
_Asked = tuple[int, str | None, dict[str, Any]]
"""A template's number, the template where it is new, and what it is given."""


class Renderer:
    """The replica's end. Thread-safe: one rendering at a time."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_LATE_S)
        # Those below are copies of this process; within walls they may not ask for their own size.
        held = _virtual_bytes()
        keeper = _forked(lambda: _keep(theirs, held), theirs)
        theirs.close()
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        """Of the present renderer: one, or none."""
        self._pid = 0
        self._known: list[str] = []
        """Templates that the present renderer has."""
        weakref.finalize(self, _end_keeper, self._control, self._ends, keeper)

    def render(self, template: str, arguments: Mapping[str, Any]) -> str:
        """The text that `render_jinja_template` of transformers makes of one conversation.

        Args:
            arguments: that function's, without the template; JSON.

        Raises:
            jinja2.TemplateError: the template refuses it.
            TemplateDataError: it does not fit the template.
            TemplateLimitError: the template takes too much for it. The next one is not harmed.
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
        asked = [number, template if is_news else None, arguments]
        try:
            _send(end, json.dumps(asked, default=_placeholder).encode())
            if (content := _receive(end)) is not None:
                return _decode(content)
        except (OSError, msgspec.DecodeError):
            # It is late, or was ended in the middle of an answer. Where the walls let none of it
            # be signalled, it ends when its own time is over.
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
_TOO_DEEP = "calls itself too deep"


def _placeholder(value: Any) -> str:
    # As transformers writes down what is no plain data.
    return f"<{type(value).__name__}>"


def _end_keeper(control: socket.socket, ends: list[socket.socket], keeper: int) -> None:
    for one in [*ends, control]:
        one.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(keeper, 0)


def _send(end: socket.socket, content: bytes) -> None:
    end.sendall(_LENGTH.pack(len(content)) + content)


def _receive(end: socket.socket) -> bytes | None:
    """The next message; None at the end."""
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
    """Fork a process that runs this and has no file open but its log and one end."""
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
        # Nothing of the replica's own end is to run here.
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
        # Nobody is to be told, where the replica is done.
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
            limit = f"makes more than {longest} characters of it"
    except MemoryError:
        limit = _TOO_MUCH
    except RecursionError:
        limit = _TOO_DEEP
    except jinja2.TemplateError as error:
        # Templates refuse what they do not know, such as roles out of order, by raising.
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
