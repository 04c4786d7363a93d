"""`python -m bench [NAME …] [--rounds 3] [--quick] [--json]`: measures and stores the results."""

import argparse
import json
import signal
import sys
import time

from bench import (
    adapters,
    agents,
    background,
    chat,
    chat_prefix,
    chat_repeats,
    chat_start,
    cold_start,
    crowd,
    endurance,
    extra_model,
    fleet,
    gateways,
    hub_import,
    idle,
    images,
    many_streams,
    overhead,
    overload,
    path,
    registered,
    scaling,
    side_by_side,
    small,
    stream_apis,
    sweep,
    switching,
    throughput,
    transcription,
    tune,
    upload,
    workers,
)
from bench.common import FAIR_ROUNDS, ROOT, Plan, document, keep, progress, table
from bench.machine import facts
from bench.path_calls import CALLS
from bench.peers.environments import NotMadeError
from bench.wrk import MissingError

BENCHMARKS = {
    "cold_start": cold_start.run,
    "overhead": overhead.run,
    "upload": upload.run,
    "workers": workers.run,
    "hub_import": hub_import.run,
    "adapters": adapters.run,
    "agents": agents.run,
    "background": background.run,
    "chat": chat.run,
    "chat_prefix": chat_prefix.run,
    "chat_repeats": chat_repeats.run,
    "chat_start": chat_start.run,
    "crowd": crowd.run,
    "endurance": endurance.run,
    "extra_model": extra_model.run,
    "fleet": fleet.run,
    "gateways": gateways.run,
    "many_streams": many_streams.run,
    "overload": overload.run,
    **{name: path.of(name) for name in CALLS},
    "idle": idle.run,
    "registered": registered.run,
    "images": images.run,
    "scaling": scaling.run,
    "side_by_side": side_by_side.run,
    "small": small.run,
    "stream_apis": stream_apis.run,
    "sweep": sweep.run,
    "switching": switching.run,
    "transcription": transcription.run,
    "tune": tune.run,
    "throughput": throughput.of("text"),
    "throughput_embeddings": throughput.of("embeddings"),
    "throughput_rerank": throughput.of("rerank"),
    "throughput_image": throughput.of("image"),
    "throughput_zero_shot_image": throughput.of("zero_shot_image"),
    "throughput_audio": throughput.of("audio"),
}
GROUPS = {"path": tuple(CALLS)}
"""Names for several benchmarks."""


def main() -> None:
    known = ", ".join((*BENCHMARKS, *GROUPS))
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the service.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which ({', '.join((*BENCHMARKS, *GROUPS))}); default: all",
    )
    parser.add_argument("--rounds", type=int, default=FAIR_ROUNDS, help="default: 3")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the smallest sizes, to see that all works; results go to bench/results/quick",
    )
    parser.add_argument("--json", action="store_true", help="print the result files instead")
    arguments = parser.parse_args()
    # A normal exit, so that started processes are stopped.
    signal.signal(signal.SIGTERM, _exit)
    names = [name for given in arguments.names for name in GROUPS.get(given, (given,))]
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {known}")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    plan = Plan(arguments.rounds, arguments.quick)
    for name in names or BENCHMARKS:
        machine = facts()
        started = time.monotonic()
        try:
            report = BENCHMARKS[name](plan)
        except (MissingError, NotMadeError) as error:
            sys.exit(f"{name}: {error}")
        if plan.quick:
            report.notes.append(
                "The smallest sizes: to see that it works. The figures say nothing."
            )
        elif plan.rounds < FAIR_ROUNDS:
            report.notes.append(f"Fewer than {FAIR_ROUNDS} rounds: for a look, not for a claim.")
        result = document(report, machine, plan)
        written = keep(result)
        print(json.dumps(result) if arguments.json else table(report, machine, plan), flush=True)
        progress(f"{time.monotonic() - started:.0f} s; {written.relative_to(ROOT)} written.")


def _exit(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
