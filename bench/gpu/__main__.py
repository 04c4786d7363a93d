"""`python -m bench.gpu [--without-gpu] [--rows …] [--out FOLDER] [--seconds 420]`

Measures Stoker on a GPU beside bare loops on the same card. docs/gpu.md explains its use.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.common import RESULTS, progress, scratch
from bench.gpu import chat, demo, memory, sleep, starts, tasks
from bench.gpu.facts import facts
from bench.gpu.results import NOT_REACHED, TABLE_NAME, Results, Row, Verdict
from bench.gpu.session import MissingError, Session, opened
from bench.gpu.sizes import FULL, TINY, Sizes
from bench.processes import end

SECONDS = 420
OVER = 2
"""Exit code of a run that took too long."""
STOP_S = 12
"""Seconds that remain for stopping everything."""
NO_GPU = "there is no GPU: nvidia-smi does not answer. --without-gpu runs tiny sizes on the CPU."


class TimeLimitError(BaseException):
    """A group of rows takes too long. Not an `Exception`, so that no row handles it."""


@dataclass(frozen=True)
class Group:
    """Rows that share a model."""

    rows: Callable[[Sizes], list[Row]]
    run: Callable[[Session, Sequence[Row]], None]
    seconds: float
    """Least number of seconds that it needs."""
    most_seconds: float
    """Seconds after which it is ended, so that one group cannot use the time of all others."""


GROUPS = {
    "demo": Group(demo.rows, demo.run, 30, 120),
    "bert": Group(tasks.bert_rows, tasks.bert, 25, 70),
    "chat": Group(chat.rows, chat.run, 35, 110),
    "minilm": Group(tasks.minilm_rows, tasks.minilm, 25, 60),
    "vit": Group(tasks.vit_rows, tasks.vit, 25, 60),
    "cold": Group(starts.rows, starts.run, 20, 60),
    "memory": Group(memory.rows, memory.run, 40, 100),
    "restore": Group(sleep.rows, sleep.run, 45, 90),
}
"""Groups of rows in the order of their importance."""


def main() -> None:
    arguments = _arguments()
    sizes = TINY if arguments.without_gpu else FULL
    began = time.monotonic()
    signal.signal(signal.SIGINT, _exit)
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGALRM, _alarm)
    about = facts(is_tiny=sizes.is_tiny)
    if not sizes.is_tiny and not about["card_facts"]:
        sys.exit(NO_GPU)
    rows = {name: GROUPS[name].rows(sizes) for name in arguments.rows}
    results = Results(arguments.out, about, [row for group in rows.values() for row in group])
    results.save()
    deadline = began + arguments.seconds - STOP_S
    settings = dict(setting.split("=", 1) for setting in arguments.setting)
    try:
        with (
            _watched(arguments.seconds, results),
            scratch() as place,
            opened(sizes, place, results, settings) as session,
        ):
            for name, group_rows in rows.items():
                _measure(session, name, group_rows, deadline)
    except (RuntimeError, httpx.HTTPError) as error:
        # The server did not start, or it ended.
        for row in results.rows:
            if row.reason == NOT_REACHED:
                row.skip(str(error), Verdict.FAILED)
    finally:
        about["seconds"] = round(time.monotonic() - began)
        results.save()
        print(results.table())
        progress(f"{results.folder / TABLE_NAME} written")
    sys.exit(0 if results.is_good else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "--without-gpu", action="store_true", help="tiny sizes on the CPU, to see that all works"
    )
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        default=list(GROUPS),
        help=f"names with commas between them: {', '.join(GROUPS)}; default: all",
    )
    parser.add_argument("--out", type=Path, help="folder of the result files")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"time budget; default: {SECONDS}"
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the server, such as replica_uids=; default: none",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - set(GROUPS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    if arguments.out is None:
        arguments.out = RESULTS / "quick" / "gpu" if arguments.without_gpu else RESULTS / "gpu"
    return arguments


def _measure(session: Session, name: str, rows: Sequence[Row], deadline: float) -> None:
    """Measures a group. Its failure becomes the reason of the rows without a figure."""
    group, left = GROUPS[name], deadline - time.monotonic()
    if not session.sizes.is_tiny and left < group.seconds:
        session.fail(rows, f"{left:.0f} s were left", Verdict.NOT_MEASURED)
        return
    progress(f"--- {name}, {left:.0f} s left")
    reason, verdict = "the group ended without it", Verdict.FAILED
    try:
        with _limited(min(left, group.most_seconds)):
            group.run(session, rows)
    except TimeLimitError:
        reason = f"its time of {min(left, group.most_seconds):.0f} s was over"
    except (MissingError, ImportError) as error:
        reason, verdict = str(error), Verdict.NOT_MEASURED
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    session.fail(rows, reason, verdict)
    session.clear()


@contextmanager
def _watched(seconds: float, results: Results) -> Generator[None]:
    """Ends this program and all of its processes after this time, even if something hangs."""

    def give_up() -> None:
        results.save()
        progress(f"{seconds:.0f} s are over: ended")
        for child in psutil.Process().children():
            end(child.pid)
        os._exit(OVER)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _limited(seconds: float) -> Generator[None]:
    """Raises `TimeLimitError` in the block after this time."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _alarm(_number: int, _frame: Any) -> None:
    raise TimeLimitError


def _exit(number: int, _frame: Any) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
