"""The tests as CI runs them: what has failed is tried once more by itself, and told.

Thousands of tests with real processes share two cores, and now and then one of them waits longer
than it may. Such a test must not hide what the others say, nor be hidden itself: it is named as
unsteady and is to be mended. What fails twice fails, and so do more than a few at once.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.marks import ROOT

MOST = 3
"""Failures that are tried again."""
FAILED = 1
"""pytest's exit status where all tests were run, and some have failed."""
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments. Returns its exit status: of the second run, if any."""
    LAST_FAILED.unlink(missing_ok=True)
    status = _pytest(*arguments)
    names = _names(LAST_FAILED)
    if status != FAILED or not 0 < len(names) <= MOST:
        return status
    _tell("Tried once more, by themselves", names)
    status = _pytest("-v", *names)
    if status == 0:
        _tell("Unsteady, passed by themselves", names)
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
