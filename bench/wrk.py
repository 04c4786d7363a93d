"""Runs `wrk`: many clients with negligible cost on the cores that they share with the measured
server.

A client in Python uses as much processor time as a fast server. It reached 100 requests per second
instead of 2,100.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from bench.common import HERE, scratch

PROGRAM = "wrk"
TIMEOUT_S = 120
MISSING = (
    f"'{PROGRAM}' is not installed, which asks for the throughput benchmarks: "
    f"'apt-get install {PROGRAM}' on Debian and Ubuntu, 'brew install {PROGRAM}' on macOS."
)


class MissingError(Exception):
    """wrk is not installed. The message says how to install it."""


@dataclass(frozen=True)
class Found:
    answered: int
    """Number of responses with status 200. `failed` counts all others."""
    failed: int
    failure: str
    """Status and body of the first failure."""
    seconds: float
    """Seconds until the last response. Requests still in progress are not counted."""
    p50_ms: float
    p99_ms: float
    cpu_seconds: float
    """Processor time of wrk in seconds."""


def version() -> str:
    """Returns wrk's name and version. Raises `MissingError`."""
    if not shutil.which(PROGRAM):
        raise MissingError(MISSING)
    # wrk prints its version only with its usage message.
    output = subprocess.run([PROGRAM, "-v"], capture_output=True, text=True, check=False).stdout
    return " ".join(output.split()[:2])


def run(url: str, key: str, bodies: Sequence[bytes], clients: int, seconds: int) -> Found:
    """Runs clients that start together and each post JSON bodies in turn."""
    with scratch() as folder:
        # Not passed as an argument, because other users can see arguments.
        if key:
            (folder / "key").write_text(f"{key}\n")
        (folder / "bodies").write_bytes(b"\n".join(bodies) + b"\n")
        output, cpu_seconds = _called(
            *(PROGRAM, "-t", "1", "-c", str(clients), "-d", f"{seconds}s"),
            *("--timeout", f"{TIMEOUT_S}s", "-s", str(HERE / "wrk.lua"), url, "--", str(folder)),
        )
    line = next((line for line in output.splitlines() if line.startswith("WRK ")), None)
    if line is None:
        raise RuntimeError(f"wrk failed:\n{output[-2000:]}")
    _, answered, failed, took, p50, p99, *failure = line.split(" ", 6)
    return Found(
        answered=int(answered),
        failed=int(failed),
        failure=" ".join(failure),
        seconds=float(took),
        p50_ms=float(p50),
        p99_ms=float(p99),
        cpu_seconds=cpu_seconds,
    )


def _called(*command: str) -> tuple[str, float]:
    """Returns a command's output and the processor time that it used, in seconds."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        output = process.stdout.read() if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{output[-2000:]}")
    return output, used.ru_utime + used.ru_stime
