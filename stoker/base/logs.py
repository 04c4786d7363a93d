"""Structured logs: one JSON object per line, with the request id. Keys and inputs are never
logged.
"""

import json
import logging
import math
import re
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal, TextIO

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_encode = json.JSONEncoder(default=str).encode
_quoted = json.encoder.encode_basestring_ascii
_PLAIN = re.compile(r"[^\s\"=\\]+")


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

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_value(value)}" for name, value in _fields(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {_escaped(record.getMessage())}"
        line = f"{line}  {fields}" if fields else line
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line = "\n    ".join([line, *map(_escaped, traceback)])
        return line


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


def configure(level: str, style: Literal["json", "text"]) -> None:
    handler = _LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
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
