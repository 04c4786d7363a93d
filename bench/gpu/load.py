"""Closed loops of many clients, in several processes so that the clients are never the limit.

`wrk` is not used, because a borrowed machine rarely has it.
"""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.common import ROOT, cores, percentile
from bench.processes import child

PROGRAM = "bench.gpu.client_process"
LIMIT_S = 60
"""Seconds after the end of a load after which its clients are stopped."""
MOST_PROCESSES = 8
STRIDE = 61
"""Difference of the first bodies of two processes, so that they send different ones."""


@dataclass
class Load:
    """Result of a load."""

    duration_s: float
    seconds: list[float] = field(default_factory=list[float])
    answers: dict[int, Any] = field(default_factory=dict[int, Any])
    """Maps the number of a body to its last answer."""
    errors: Counter[str] = field(default_factory=Counter[str])
    failure: str = ""
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.seconds) / self.duration_s

    def took_s(self, share: float) -> float:
        return percentile(self.seconds, share)

    def as_json(self) -> dict[str, Any]:
        return {
            "per_s": self.rate,
            "p50_ms": self.took_s(0.5) * 1e3,
            "p99_ms": self.took_s(0.99) * 1e3,
            "errors": dict(self.errors),
            "failure": self.failure,
            "client_cpu_s": self.client_cpu_s,
        }


def run(
    base_url: str, path: str, key: str, bodies: Sequence[str], clients: int, seconds: float
) -> Load:
    """Runs clients that start together. Raises `RuntimeError` if no request succeeds."""
    address = urlsplit(base_url)
    count = min(clients, MOST_PROCESSES, max(1, cores() // 2))
    task = {"host": address.hostname, "port": address.port, "path": path, "key": key}
    load = Load(seconds)
    # The processes end first, so that the threads never wait for them after an error.
    with ThreadPoolExecutor(count) as threads, contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_started()) for _ in range(count)]
        tasks = [
            task
            | {"bodies": bodies, "seconds": seconds, "first": number * STRIDE}
            | {"clients": clients // count + (number < clients % count)}
            for number in range(count)
        ]
        for result in threads.map(_result, processes, tasks):
            _add(load, result)
    if not load.seconds:
        raise RuntimeError(f"no request succeeded: {load.failure or 'no answer in time'}")
    return load


def _started() -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    # -S and -E: the clients need only the standard library, and no variables of the caller.
    command = [sys.executable, "-S", "-E", "-m", PROGRAM]
    return child(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _result(process: "subprocess.Popen[str]", task: dict[str, Any]) -> dict[str, Any]:
    output, _ = process.communicate(json.dumps(task), timeout=task["seconds"] + LIMIT_S)
    return json.loads(output)


def _add(load: Load, result: dict[str, Any]) -> None:
    load.seconds += result["seconds"]
    load.answers |= {int(number): json.loads(text) for number, text in result["answers"].items()}
    load.errors.update(result["errors"])
    load.failure = load.failure or result["failure"]
    load.client_cpu_s += result["cpu_seconds"]
