"""Feeds all parsers of untrusted bytes with files and streams that have a damaged structure.

`make fuzz-formats EXAMPLES=2000 SEED=1` runs the properties of tests/fuzzing with this number of
inputs each. Each format has a separate process, because a decoder may end its own. Reports accepted
and rejected inputs and failures per format. The exit code is 1 if a property failed.
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
    parser = argparse.ArgumentParser(description="Fuzz what reads a stranger's bytes.")
    parser.add_argument("--examples", type=int, default=2000, help="Inputs a property.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="Write the results as JSON.")
    parser.add_argument("formats", nargs="*", metavar="format", help=f"Of {', '.join(names)}.")
    arguments = parser.parse_args()
    if unknown := {*arguments.formats} - {*names}:
        parser.error(f"no such format: {', '.join(sorted(unknown))}")
    results: dict[str, Any] = {}
    for name in arguments.formats or names:
        results[name] = fuzzed(name, arguments.examples, arguments.seed)
        if not arguments.json:
            sys.stdout.write(_told(name, results[name]))
            sys.stdout.flush()
    if arguments.json:
        result = {"examples": arguments.examples, "seed": arguments.seed, "formats": results}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return int(any(entry["failed"] for entry in results.values()))


def fuzzed(name: str, examples: int, seed: int) -> dict[str, Any]:
    """Runs the properties of one format. Returns the failures by property, with their inputs."""
    with tempfile.TemporaryDirectory(prefix="stoker-fuzz-") as folder:
        tally = Path(folder) / "tally.json"
        command = [
            *(sys.executable, "-m", "pytest", str(FUZZERS / f"test_{name}.py"), "-q"),
            *("--hypothesis-seed", str(seed), "-p", "no:cacheprovider", "-o", "timeout=0"),
            *("--show-capture", "no"),
        ]
        # tests/fuzzing/support.py reads these two variables.
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
        outcome: dict[str, Any] = {"properties": {}, "failed": {}, "peak_mib": 0}
        if tally.exists():
            outcome = json.loads(tally.read_text())
        if done.returncode and not outcome["failed"]:
            outcome["failed"][name] = _ended(done, tally.with_suffix(".input"))
        outcome["seconds"] = round(time.monotonic() - began, 1)
        return outcome


def _ended(done: "subprocess.CompletedProcess[bytes]", last: Path) -> str:
    """Describes a process that ended early. Includes its last input if a decoder was processing
    one.
    """
    output = done.stdout.decode(errors="replace")[-_KEPT_OUTPUT:]
    input_note = f" at the input {last.read_bytes()[:_KEPT_OUTPUT]!r}" if last.exists() else ""
    return f"ended with {done.returncode}{input_note}\n{output}"


def _told(name: str, found: dict[str, Any]) -> str:
    lines = [f"{name}: {found['seconds']} s, at most {found['peak_mib']} MiB"]
    for property_, counts in found["properties"].items():
        numbers = [f"{counts.get(kind, 0)} {kind}" for kind in ("tried", "accepted", "refused")]
        lines.append(f"  {property_.rpartition('.')[2]}: {', '.join(numbers)}")
    lines += [f"  FAILED {place}\n{failure}" for place, failure in found["failed"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
