"""Writes the results of a soak test."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.soak.checks import Size, growth_mib
from tools.soak.tally import Tally


@dataclass
class Measurements:
    seed: str
    minutes: float
    machine: str
    lives: int = 0
    small_disk: bool = True
    own_clock: bool = True
    steady: Sequence[Size] = ()
    last: Size | None = None
    fresh: Size | None = None
    errors: Mapping[str, int] = field(default_factory=dict[str, int])
    lag: Mapping[str, str] = field(default_factory=dict[str, str])


def written(found: Measurements, tally: Tally) -> str:
    """Returns the report as Markdown."""
    answers: dict[str, Counter[int]] = {}
    for (actor, status), count in tally.answers.items():
        answers.setdefault(actor, Counter())[status] += count
    total = sum(tally.answers.values())
    lines = [
        f"# Soak, seed {found.seed}: {found.minutes:g} minutes, {tally.lost} lost",
        "",
        f"{found.machine}. Requests: {total}. Faults: {sum(tally.faults.values())}. "
        f"Lives of the server: {found.lives}."
        + ("" if found.small_disk else " No disk could be mounted: it was never full.")
        + ("" if found.own_clock else " There is no C compiler: the clock was never set."),
        "",
        "| done | |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(tally.done.items())),
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(tally.faults.items())),
        "",
        "| answers to | by status (0: the connection broke) | p50, p99 of 200s |",
        "|---|---|---|",
    ]
    for actor, counts in sorted(answers.items()):
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
        lines.append(f"| {actor} | {shown} | {_quantiles(tally.waited_s.get(actor, []))} |")
    lines += ["", "## Memory of the server", ""]
    if found.steady:
        first, last = found.steady[0], found.steady[-1]
        lines.append(
            f"While one server lived on, {_steady_minutes(found):.1f} min: "
            f"{first.rss_mib:.0f} to {last.rss_mib:.0f} MiB, growth "
            f"{growth_mib(found.steady):+.0f} MiB."
        )
    for name, size in (("Emptied", found.last), ("A fresh one", found.fresh)):
        if size:
            lines.append(
                f"{name}: {size.rss_mib:.0f} MiB, {size.descriptors} descriptors, "
                f"{size.threads} threads."
            )
    if found.lag:
        lines += ["", "## Its event loop", "", *_lag_lines(found.lag)]
    lines += ["", "## Lost, or seen that may not be", ""]
    lines += [f"- {loss}" for loss in tally.losses] or ["Nothing."]
    lines += ["", "## Errors in its log", ""]
    errors = sorted(found.errors.items())
    lines += [f"- {count} times {name}" for name, count in errors] or ["None."]
    return "\n".join(lines) + "\n"


def document(found: Measurements, tally: Tally) -> dict[str, Any]:
    """Returns the data for the page on reliability."""
    answers: Counter[int] = Counter()
    for (_, status), count in tally.answers.items():
        answers[status] += count
    return {
        "seed": found.seed,
        "minutes": found.minutes,
        "machine": found.machine,
        "requests": sum(tally.answers.values()),
        "answers": {str(status): count for status, count in sorted(answers.items())},
        "done": dict(sorted(tally.done.items())),
        "faults": dict(sorted(tally.faults.items())),
        "lives": found.lives,
        "lost": tally.lost,
        "losses": tally.losses,
        "memory_mib": _by_minute(found.steady),
        "growth_mib": growth_mib(found.steady) if found.steady else None,
        "steady_minutes": _steady_minutes(found),
        "lag": {
            "over_100_ms": _late(found.lag),
            "looks": _count(found.lag),
            "longest_step_s": float(found.lag.get("stoker_event_loop_longest_step_seconds", 0)),
        },
        "errors": dict(found.errors),
    }


def _by_minute(sizes: Sequence[Size]) -> list[float]:
    """Returns the server's memory in MiB per minute, while one server kept running."""
    by_minute: dict[int, list[float]] = {}
    for size in sizes:
        by_minute.setdefault(int((size.at_s - sizes[0].at_s) // 60), []).append(size.rss_mib)
    return [round(statistics.median(values), 1) for values in by_minute.values()]


def _steady_minutes(found: Measurements) -> float:
    return (found.steady[-1].at_s - found.steady[0].at_s) / 60 if found.steady else 0.0


def _lag_lines(lag: Mapping[str, str]) -> list[str]:
    longest = float(lag.get("stoker_event_loop_longest_step_seconds", 0))
    return [
        f"Of the last life. A turn of the loop began more than 100 ms late {_late(lag)} times of "
        f"{_count(lag)}; the longest step computed for {longest * 1000:.0f} ms.",
    ]


def _count(lag: Mapping[str, str]) -> int:
    return round(float(lag.get("stoker_event_loop_wait_seconds_count", 0)))


def _late(lag: Mapping[str, str]) -> int:
    in_time = float(lag.get('stoker_event_loop_wait_seconds_bucket{le="0.1"}', 0))
    return _count(lag) - round(in_time)


def _quantiles(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "-"
    cuts = statistics.quantiles(seconds, n=100)
    return f"{cuts[49]:.2f} s, {cuts[98]:.2f} s"
