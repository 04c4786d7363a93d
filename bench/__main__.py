"""`python -m bench [NAME …] [--rounds 3] [--json]`: runs benchmarks and keeps their results."""

import argparse
import json
import signal
import sys
import time

from bench import (
    agents,
    chat,
    chat_prefix,
    chat_start,
    cold_start,
    crowd,
    extra_model,
    images,
    overhead,
    registered,
    throughput,
    transcription,
    upload,
)
from bench.common import document, keep, machine, table

BENCHMARKS = {
    "cold_start": cold_start.run,
    "overhead": overhead.run,
    "upload": upload.run,
    "agents": agents.run,
    "chat": chat.run,
    "chat_prefix": chat_prefix.run,
    "chat_start": chat_start.run,
    "crowd": crowd.run,
    "extra_model": extra_model.run,
    "registered": registered.run,
    "images": images.run,
    "transcription": transcription.run,
    "throughput": throughput.of("text"),
    "throughput_image": throughput.of("image"),
    "throughput_zero_shot_image": throughput.of("zero_shot_image"),
    "throughput_audio": throughput.of("audio"),
}
FAIR_ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the service.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which ({', '.join(BENCHMARKS)}); default: all"
    )
    parser.add_argument("--rounds", type=int, default=FAIR_ROUNDS, help="default: 3")
    parser.add_argument("--json", action="store_true", help="print the result files instead")
    given = parser.parse_args()
    # An ordinary exit, so that what was started is stopped.
    signal.signal(signal.SIGTERM, _exit)
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    for name in given.names or BENCHMARKS:
        facts = machine()
        started = time.monotonic()
        report = BENCHMARKS[name](given.rounds)
        if given.rounds < FAIR_ROUNDS:
            report.notes.append(f"Fewer than {FAIR_ROUNDS} rounds: for a look, not for a claim.")
        found = document(report, facts, given.rounds)
        path = keep(found)
        print(json.dumps(found) if given.json else table(report, facts, given.rounds), flush=True)
        print(f"{time.monotonic() - started:.0f} s; {path.name} written.", file=sys.stderr)


def _exit(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
