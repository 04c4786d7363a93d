"""Waits for a batch and shows its progress on stderr."""

import contextlib
import time
from collections.abc import Callable, Generator

from stoker.cli import output
from stoker.client.client import Client, JsonObject, Retry, quoted
from stoker.client.retry import RetryLimits

BATCHES = "/v1/batches"
ENDED = ("completed", "failed", "expired", "cancelled")
POLL_S = 1.0
UNREACHABLE_S = 600.0
"""Time that a server may be away. A batch continues after a restart."""
_STEPS = 10
"""Messages about counts, if stderr is not a terminal."""

_Show = Callable[[JsonObject], None]


def path_of(batch_id: str) -> str:
    return f"{BATCHES}/{quoted(batch_id)}"


def ended(server: Client, batch: JsonObject) -> JsonObject:
    """Waits until a batch has ended and returns it. Ctrl-C ends the wait only."""
    place = path_of(batch["id"])
    try:
        with _progress() as (show, note):
            retry = Retry(
                limits=RetryLimits(unreachable_s=UNREACHABLE_S),
                on_wait=lambda why: note(f"{why} Retrying."),
            )
            show(batch)
            while batch["status"] not in ENDED:
                time.sleep(POLL_S)
                batch = retry.run(lambda: server.get(place))
                show(batch)
    except KeyboardInterrupt:
        output.say(
            f"\nThe batch continues. See it with: stoker batch show {batch['id']}\n"
            f"Wait for it again with: stoker batch wait {batch['id']}"
        )
        raise
    return batch


@contextlib.contextmanager
def _progress() -> Generator[tuple[_Show, Callable[[str], None]]]:
    """Yields functions that show a batch, and a message."""
    out = output.console(stderr=True)
    note = _once(lambda text: output.say(text, style="yellow"))
    if not out.is_terminal:
        yield _lines(), note
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out) as bar:
        task = bar.add_task("", total=None, counts="")

        def show(batch: JsonObject) -> None:
            counts = batch["request_counts"]
            bar.update(
                task,
                description=_state(batch),
                total=counts["total"] or None,
                completed=counts["completed"] + counts["failed"],
                counts=_counts(counts, bar.tasks[0].speed),
            )
            if batch["paused"]:
                note(f"Paused: {batch['paused']['message']}")

        yield show, note


def _lines() -> _Show:
    """Returns a function that prints changes of the status, and of the counts a few times."""
    say = _once(output.say)
    before: tuple[str, int] | None = None

    def show(batch: JsonObject) -> None:
        nonlocal before
        counts = batch["request_counts"]
        done = counts["completed"] + counts["failed"]
        state = _state(batch)
        now = state, _STEPS * done // max(1, counts["total"])
        if now != before:
            before = now
            shown = _counts(counts, None)
            say(f"{batch['id']}: {state}" + (f", {shown}" if shown else ""))
        if batch["paused"]:
            say(f"{batch['id']}: paused: {batch['paused']['message']}")

    return show


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that does not repeat its last message."""
    last = ""

    def told(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            say(output.printable(text))

    return told


def _state(batch: JsonObject) -> str:
    return "paused" if batch["paused"] else batch["status"].replace("_", " ")


def _counts(counts: JsonObject, per_s: float | None) -> str:
    if not counts["total"]:
        return ""
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    rate = f", {per_s:.1f}/s" if per_s else ""
    return f"{counts['completed'] + counts['failed']}/{counts['total']} lines{failed}{rate}"
