"""Structured logs: one JSON object per line with the request id, or text on a terminal. Keys and
inputs are never logged.
"""

import json
import logging
import math
import os
import re
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal, TextIO

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

Style = Literal["auto", "json", "text"]
"""Format of the log. `auto` is text on a terminal, otherwise JSON."""

# uvicorn's `color_message` repeats the message with escape codes.
_IGNORED = {"message", "asctime", "taskName", "color_message"}
_STANDARD = set(logging.makeLogRecord({}).__dict__) | _IGNORED
_encode = json.JSONEncoder(default=str).encode
_quoted = json.encoder.encode_basestring_ascii
_PLAIN = re.compile(r"[^\s\"=\\]+")
_RESET, _DIM = "\x1b[0m", "\x1b[2m"
_COLOURS = {
    logging.DEBUG: _DIM,
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
"""Maps a level to the escape code of its colour."""


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    # Libraries such as Ray add private fields, which are left out.
    return {
        name: value
        for name, value in record.__dict__.items()
        if name not in _STANDARD and not name.startswith("_")
    }


def _as_json(value: object) -> str:
    """Returns a value in JSON. Encodes the most frequent types without an encoder."""
    if type(value) is str:
        return _quoted(value)
    is_plain = type(value) is int or (type(value) is float and math.isfinite(value))
    return repr(value) if is_plain else _encode(value)


class JsonFormatter(logging.Formatter):
    _second = ""
    _second_at = -1

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": f"{self._time(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if identifier := request_id.get():
            entry["request_id"] = identifier
        entry |= _fields(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        fields = [f"{_quoted(name)}: {_as_json(value)}" for name, value in entry.items()]
        return "{" + ", ".join(fields) + "}"

    def _time(self, second: int) -> str:
        """Returns a time in seconds as text. Entries of the same second share it."""
        if second != self._second_at:
            self._second_at = second
            self._second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._second


class TextFormatter(logging.Formatter):
    """Formats each entry as one line, with its fields as `name=value`.

    Only tracebacks have further lines, which are indented. A client's text therefore cannot imitate
    an entry or a field.
    """

    def __init__(self, *, is_coloured: bool = False) -> None:
        super().__init__()
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_value(value)}" for name, value in _fields(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower():7}"
        if self._is_coloured:
            clock = _painted(clock, _DIM)
            level = _painted(level, _COLOURS.get(record.levelno, ""))
            fields = _painted(fields, _DIM) if fields else ""
        line = f"{clock} {level} {_escaped(record.getMessage())}"
        line = f"{line}  {fields}" if fields else line
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line = "\n    ".join([line, *map(_escaped, traceback)])
        return line


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{_RESET}"


def _escaped(text: str) -> str:
    """Escapes line ends, cursor controls and characters that cannot be encoded."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def _value(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text):
        return _escaped(text)
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(quoted)}"'


class _LineHandler(logging.StreamHandler[TextIO]):
    """Stream handler that holds its lock once for an entry instead of twice."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record) + self.terminator)
            self.stream.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)


def is_text(style: Style) -> bool:
    """Returns True if the log is text: `auto` means text on a terminal, and JSON otherwise."""
    return style == "text" or (style == "auto" and sys.stderr.isatty())


def _formatter(style: Style) -> logging.Formatter:
    if not is_text(style):
        return JsonFormatter()
    # https://no-color.org
    return TextFormatter(is_coloured=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))


def configure(level: str, style: Style) -> None:
    handler = _LineHandler(sys.stderr)
    handler.setFormatter(_formatter(style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Skips lookups per entry for values that no format shows (see "Optimization" in the
    # documentation of `logging`).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # type: ignore[attr-defined]
    # Stoker's own access log has the request id. Entries of httpx and alembic do not help an
    # operator.
    for name in ("uvicorn.access", "httpx2", "httpcore2", "alembic", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # The library logs output of tool servers.
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True
