"""Feeds whatever parses a stranger's bytes with files and streams damaged in their structure.

`make fuzz-formats EXAMPLES=2000 SEED=1`: the properties of tests/fuzzing, so many inputs each, a
process a format, as a decoder may end its own. Tells how many inputs each took and refused, and
what failed; the exit code is 1 if anything did.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FUZZERS = ROOT / "tests" / "fuzzing"
_KEPT_OUTPUT = 4000


def main() -> int:
    names = [path.stem.removeprefix("test_") for path in sorted(FUZZERS.glob("test_*.py"))]
    asked = argparse.ArgumentParser(description="Fuzz what reads a stranger's bytes.")
    asked.add_argument("--examples", type=int, default=2000, help="Inputs a property.")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--json", action="store_true", help="Write the results as JSON.")
    asked.add_argument("formats", nargs="*", metavar="format", help=f"Of {', '.join(names)}.")
    given = asked.parse_args()
    if unknown := {*given.formats} - {*names}:
        asked.error(f"no such format: {', '.join(sorted(unknown))}")
    found: dict[str, Any] = {}
    for name in given.formats or names:
        found[name] = fuzzed(name, given.examples, given.seed)
        if not given.json:
            sys.stdout.write(_told(name, found[name]))
            sys.stdout.flush()
    if given.json:
        result = {"examples": given.examples, "seed": given.seed, "formats": found}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return int(any(one["failed"] for one in found.values()))


def fuzzed(name: str, examples: int, seed: int) -> dict[str, Any]:
    """Run the properties of one format; what failed by the property, with its input."""
    with tempfile.TemporaryDirectory(prefix="stoker-fuzz-") as folder:
        tally = Path(folder) / "tally.json"
        command = [
            *(sys.executable, "-m", "pytest", str(FUZZERS / f"test_{name}.py"), "-q"),
            *("--hypothesis-seed", str(seed), "-p", "no:cacheprovider", "-o", "timeout=0"),
            *("--show-capture", "no"),
        ]
        # The tests read these two in tests/fuzzing/support.py.
        more = {"STOKER_FUZZ_EXAMPLES": str(examples), "STOKER_FUZZ_TALLY": str(tally)}
        began = time.monotonic()
        done = subprocess.run(  # noqa: S603 — our own words
            command,
            cwd=ROOT,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        found: dict[str, Any] = {"properties": {}, "failed": {}, "peak_mib": 0}
        if tally.exists():
            found = json.loads(tally.read_text())
        if done.returncode and not found["failed"]:
            found["failed"][name] = _ended(done, tally.with_suffix(".input"))
        found["seconds"] = round(time.monotonic() - began, 1)
        return found


def _ended(done: "subprocess.CompletedProcess[bytes]", last: Path) -> str:
    """What is known of a process that was ended: its last input, where a decoder had it."""
    told = done.stdout.decode(errors="replace")[-_KEPT_OUTPUT:]
    held = f" at the input {last.read_bytes()[:_KEPT_OUTPUT]!r}" if last.exists() else ""
    return f"ended with {done.returncode}{held}\n{told}"


def _told(name: str, found: dict[str, Any]) -> str:
    lines = [f"{name}: {found['seconds']} s, at most {found['peak_mib']} MiB"]
    for property_, counts in found["properties"].items():
        numbers = [f"{counts.get(kind, 0)} {kind}" for kind in ("tried", "accepted", "refused")]
        lines.append(f"  {property_.rpartition('.')[2]}: {', '.join(numbers)}")
    lines += [f"  FAILED {place}\n{what}" for place, what in found["failed"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
