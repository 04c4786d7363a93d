"""No client text can imitate a log entry."""

import io
import json
import logging
import re
import sys
from typing import Any

import pytest

from stoker.base import logs
from stoker.base.logs import JsonFormatter, TextFormatter

FORGED = "09:00:00 info    key revoked"
OWN_CODES = re.compile("\x1b\\[[0-9;]*m")
HOSTILE = {
    "a line feed": f"/x\n{FORGED}",
    "a carriage return": f"/x\r{FORGED}",
    "a line separator": f"/x\u2028{FORGED}",
    "a next line": f"/x\x85{FORGED}",
    "a form feed": f"/x\x0c{FORGED}",
    "an escape": f"/x\x1b[2K\x1b[1G{FORGED}",
    "a control of eight bits": f"/x\x9b2K{FORGED}",
    "backspaces": "/x" + "\b" * 40 + FORGED,
    "a delete": "/x\x7f",
    "text from right to left": "/x\u202e" + FORGED[::-1],
    "a lone surrogate": "/x\ud800",
    "a NUL": "/x\0",
}


def written(formatter: logging.Formatter, message: str, error: Any = None, **fields: str) -> str:
    """Returns the entry as written to a log that accepts only UTF-8."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    record = logging.makeLogRecord({"name": "test", "msg": message, "exc_info": error, **fields})
    handler.handle(record)
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
class TestL2:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_l2_a_field_is_a_part_of_its_line(self, formatter: logging.Formatter, name: str):
        line = written(formatter, "request", path=HOSTILE[name])
        assert line.endswith("\n") and line[:-1].isprintable(), line
        if isinstance(formatter, JsonFormatter):
            assert json.loads(line)["path"] == HOSTILE[name]

    @pytest.mark.parametrize("name", HOSTILE)
    def test_l2_a_message_is_one_line(self, formatter: logging.Formatter, name: str):
        line = written(formatter, HOSTILE[name])
        assert line.endswith("\n") and line[:-1].isprintable(), line

    @pytest.mark.parametrize("name", HOSTILE)
    def test_l2_a_traceback_begins_no_entry(self, formatter: logging.Formatter, name: str):
        try:
            raise ValueError(HOSTILE[name])
        except ValueError:
            entry = written(formatter, "request failed", sys.exc_info())
        first, *rest = entry.rstrip("\n").split("\n")
        assert all(line.startswith("    ") and line.isprintable() for line in rest)
        assert "request failed" in first and "ValueError" in entry


class TestText:
    def test_plain_values_stand_as_they_are(self):
        line = written(TextFormatter(), "request", path="/v1/models/té", status="200")
        assert line.endswith("  path=/v1/models/té status=200\n")

    def test_l2_no_field_within_a_field(self):
        line = written(TextFormatter(), "request", path='/x status=200 "a\\')
        assert line.endswith('  path="/x status=200 \\"a\\\\"\n')

    @pytest.mark.parametrize("name", HOSTILE)
    def test_l2_colour_is_of_the_server_alone(self, name: str):
        formatter = TextFormatter(is_coloured=True)
        line = written(formatter, HOSTILE[name], path=HOSTILE[name], levelno=logging.INFO)
        assert OWN_CODES.sub("", line[:-1]).isprintable(), line
        assert len(OWN_CODES.findall(line)) == 6


class TestFormat:
    @pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
    def test_no_message_in_colours_of_uvicorn(self, formatter: logging.Formatter):
        line = written(formatter, "Started", color_message="\x1b[36mStarted\x1b[0m")
        assert "Started" in line and "color_message" not in line

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_auto_is_text_on_a_terminal(self, is_terminal: bool, monkeypatch: pytest.MonkeyPatch):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        assert logs.is_text("auto") is is_terminal
        assert logs.is_text("text") is True
        assert logs.is_text("json") is False
