"""Log entries about HTTP workers whose event loop is blocked."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker.server.telemetry.loop_watch import HELD
from tests.support import blocked_worker

GIVEN_S = 120

Entries = Iterator[dict[str, Any]]


@contextmanager
def log_of(function: str) -> Iterator[Entries]:
    """Yields the log of a fleet whose worker runs a function for each request."""
    command = [sys.executable, "-m", blocked_worker.__name__, function]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        limit = threading.Timer(GIVEN_S, process.kill)
        limit.start()
        try:
            yield (json.loads(line) for line in process.stderr if line.startswith("{"))
        finally:
            limit.cancel()
            process.kill()


def find(entries: Entries, event: str) -> dict[str, Any]:
    for entry in entries:
        if entry["event"] == event:
            return entry
    raise AssertionError(f"no log entry: {event}")


def test_a_long_step_of_a_worker_is_logged() -> None:
    with log_of("computes") as entries:
        entry = find(entries, HELD)
    assert entry["loop"].startswith("HTTP worker ")
    assert entry["stack"].endswith(" computes")
    assert entry["processor_ms"] > 100


def test_the_stack_of_a_worker_that_hangs_is_logged() -> None:
    with log_of("hangs") as entries:
        killed = find(entries, "HTTP worker hangs; it is killed")
        ended = find(entries, "stack of the ended HTTP worker")
        assert ended["pid"] == killed["pid"]
        while "in hangs" not in ended["stack"]:
            # On a busy machine, a worker may be killed before it has a request.
            ended = find(entries, "stack of the ended HTTP worker")
        assert "data_received" in ended["stack"]
        assert "Extension modules" not in ended["stack"]
        find(entries, "HTTP worker ended; starting another one")


def test_a_worker_that_handles_no_signals_is_killed() -> None:
    with log_of("stops") as entries:
        killed = find(entries, "HTTP worker hangs; it is killed")
        find(entries, "HTTP worker ended; starting another one")
        # It is replaced.
        assert find(entries, "HTTP worker hangs; it is killed")["pid"] != killed["pid"]
