"""Runs the tests as CI does. Failed tests are retried once, separately, and reported.

Thousands of tests with real processes share two cores. Occasionally, one of them waits longer than
its limit. Such a test must neither hide the results of other tests nor stay hidden. It is reported
as flaky and must be fixed. A test that fails twice fails the run. So do failures in more than a few
files, counted by file because a failed fixture fails every test that shares it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.marks import ROOT

MOST = 3
"""Maximum number of files whose failures are retried."""
FAILED = 1
"""pytest's exit status if all tests ran and some failed."""
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main(arguments: Sequence[str]) -> int:
    """Runs pytest with these arguments. Returns the exit status of the last run."""
    LAST_FAILED.unlink(missing_ok=True)
    status = _pytest(*arguments)
    names = _names(LAST_FAILED)
    files = {name.partition("::")[0] for name in names}
    if status != FAILED or not 0 < len(files) <= MOST:
        return status
    _tell("Retried alone", names)
    status = _pytest("-v", *names)
    if status == 0:
        _tell("Flaky, passed alone", names)
    return status


def _tell(what: str, names: Sequence[str]) -> None:
    sys.stdout.write(f"\n{what}: {', '.join(names)}\n")
    sys.stdout.flush()


def _pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT).returncode  # noqa: S603 — pytest


def _names(path: Path) -> list[str]:
    return sorted(json.loads(path.read_text())) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
