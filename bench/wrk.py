"""`wrk`: many clients that cost next to nothing of the cores they share with what they measure.

A client in Python takes as much as a fast server does: 100 requests a second were seen where there
were 2,100.
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
    """There is no wrk here; the message tells how it comes."""


@dataclass(frozen=True)
class Found:
    answered: int
    """With 200; `failed` are all others."""
    failed: int
    failure: str
    """The first one's status and body."""
    seconds: float
    """Until the last answer: of what is still on its way then, nothing is known."""
    p50_ms: float
    p99_ms: float
    cpu_seconds: float
    """Of wrk itself."""


def version() -> str:
    """Its name and version. Raises `MissingError`."""
    if not shutil.which(PROGRAM):
        raise MissingError(MISSING)
    # It says so with what else it says to who asks wrongly.
    said = subprocess.run([PROGRAM, "-v"], capture_output=True, text=True, check=False).stdout
    return " ".join(said.split()[:2])


def run(url: str, key: str, bodies: Sequence[bytes], clients: int, seconds: int) -> Found:
    """Have clients post JSON bodies in turn, each one after the other, all beginning together."""
    with scratch() as folder:
        # Not among the arguments: others see them.
        if key:
            (folder / "key").write_text(f"{key}\n")
        (folder / "bodies").write_bytes(b"\n".join(bodies) + b"\n")
        said, cpu_seconds = _called(
            *(PROGRAM, "-t", "1", "-c", str(clients), "-d", f"{seconds}s"),
            *("--timeout", f"{TIMEOUT_S}s", "-s", str(HERE / "wrk.lua"), url, "--", str(folder)),
        )
    line = next((line for line in said.splitlines() if line.startswith("WRK ")), None)
    if line is None:
        raise RuntimeError(f"wrk failed:\n{said[-2000:]}")
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
    """What a command says, and the processor time that it took."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        said = process.stdout.read() if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{said[-2000:]}")
    return said, used.ru_utime + used.ru_stime
