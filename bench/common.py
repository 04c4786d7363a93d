"""Shared code of all benchmarks: series of rounds, ratios with their aims, tables, result files."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

HERE = Path(__file__).parent
ROOT = HERE.parent
CACHE = HERE / ".cache"
RESULTS = HERE / "results"

QUIET_LOAD = 0.5
"""Load average over one minute from which other processes visibly share the machine."""
FAIR_ROUNDS = 3

Size = TypeVar("Size")


@dataclass(frozen=True)
class Plan:
    """Extent of the measurements."""

    rounds: int = FAIR_ROUNDS
    quick: bool = False
    """True for the smallest sizes, which only show that a benchmark works. Its figures are
    meaningless.
    """

    def sized(self, full: Size, quick: Size) -> Size:
        return quick if self.quick else full


@dataclass
class Series:
    """A figure, with one value per round."""

    label: str
    unit: str
    values: list[float] = field(default_factory=list[float])
    aim: str = ""
    meets: Callable[[float], bool] | None = None
    """Returns True if a value meets the aim."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float | None:
        """Difference of the maximum and minimum values, as a share of the median."""
        return (max(self.values) - min(self.values)) / abs(self.median) if self.median else None

    @property
    def verdict(self) -> str:
        """Verdict on the aim by the median. `unclear` if the rounds disagree."""
        if self.meets is None:
            return ""
        met = self.meets(self.median)
        if any(self.meets(value) is not met for value in self.values):
            return "unclear"
        return "met" if met else "MISSED"

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "spread": self.spread,
            "values": self.values,
            "aim": self.aim or None,
            "verdict": self.verdict or None,
        }


@dataclass
class Client:
    """Cost of the client in processor time, on the cores that are also measured."""

    name: str = "Python"
    spent: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]]
    )
    """Maps a label to the client's processor time and the duration of each load, in seconds."""

    def add(self, label: str, cpu_seconds: float, seconds: float) -> None:
        self.spent.setdefault(label, []).append((cpu_seconds, seconds))

    @contextmanager
    def asking(self, label: str) -> Generator[None]:
        """Measures the processor time of this process during the block."""
        began, used = time.perf_counter(), time.process_time()
        yield
        self.add(label, time.process_time() - used, time.perf_counter() - began)

    def share(self, label: str) -> float:
        """Returns the client's share of all cores."""
        spent = self.spent[label]
        return sum(cpu for cpu, _ in spent) / max(1e-9, sum(took for _, took in spent)) / cores()

    def as_json(self) -> dict[str, Any]:
        loads = {
            label: {
                "cpu_seconds": [cpu for cpu, _ in spent],
                "seconds": [took for _, took in spent],
                "share_of_cores": self.share(label),
            }
            for label, spent in self.spent.items()
        }
        return {"name": self.name, "loads": loads}


@dataclass
class Report:
    """Results of one benchmark."""

    name: str
    title: str
    series: list[Series] = field(default_factory=list[Series])
    notes: list[str] = field(default_factory=list[str])
    settings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Maps each side to its settings: all that differs from its defaults."""
    client: Client = field(default_factory=Client)

    def add(
        self,
        label: str,
        unit: str,
        value: float,
        *,
        aim: str = "",
        meets: Callable[[float], bool] | None = None,
    ) -> None:
        """Adds a round's value to the series with this label."""
        for series in self.series:
            if series.label == label:
                series.values.append(value)
                return
        self.series.append(Series(label, unit, [value], aim, meets))

    def left_out(self, side: str, why: object) -> None:
        """Reports that a side is not measured, now and next to the figures."""
        line = f"{side} is left out: {str(why).strip().splitlines()[-1]}"
        progress(f"{line}\n{why}" if "\n" in str(why) else line)
        if line not in self.notes:
            self.notes.append(line)


def progress(line: str) -> None:
    """Prints progress to stderr for the waiting user. Results go to stdout."""
    print(line, file=sys.stderr, flush=True)


def at_most(limit: float) -> Callable[[float], bool]:
    return lambda value: value <= limit


def at_least(limit: float) -> Callable[[float], bool]:
    return lambda value: value >= limit


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the nearest-rank percentile. `share` is from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def clients_of(count: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def table(report: Report, facts: dict[str, Any], plan: Plan) -> str:
    """Formats the report as text."""
    rows: list[tuple[str, ...]] = [("", "median", "min", "max", "", "aim", "")]
    for series in report.series:
        numbers = (series.median, min(series.values), max(series.values))
        rows.append((series.label, *map(_number, numbers), series.unit, series.aim, series.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{report.name}: {report.title}", ""]
    for row in rows:
        cells = [
            cell.rjust(width) if 1 <= column <= 3 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    flags = f" ({', '.join(facts['flags'])})" if facts["flags"] else ""
    lines += ["", f"  {plan.rounds} rounds on {facts['cores']} cores, {facts['cpu']}{flags}."]
    if facts["load"][0] > QUIET_LOAD:
        lines.append(
            f"  WARNING: load {facts['load'][0]} at the start. Others were using the machine: "
            "read the ratios with care and the times not at all."
        )
    notes = [*_dtypes_note(report), *_clients_note(report.client), *report.notes]
    lines += [f"  {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _dtypes_note(report: Report) -> list[str]:
    dtypes = [
        f"{side}: {entry['dtype']}" for side, entry in report.settings.items() if "dtype" in entry
    ]
    return [f"Computed in: {'; '.join(dtypes)}."] if dtypes else []


def _clients_note(client: Client) -> list[str]:
    if not client.spent:
        return []
    most = max(client.spent, key=client.share)
    return [
        f"The client, {client.name}, took at most {client.share(most):.1%} of the cores ({most})."
    ]


def document(report: Report, facts: dict[str, Any], plan: Plan) -> dict[str, Any]:
    return {
        "name": report.name,
        "title": report.title,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": plan.rounds,
        "quick": plan.quick,
        "machine": facts,
        "settings": report.settings,
        "client": report.client.as_json(),
        "series": [series.as_json() for series in report.series],
        "notes": report.notes,
    }


def keep(found: dict[str, Any]) -> Path:
    """Writes a result. A quick result never overwrites a meaningful one."""
    folder = RESULTS / "quick" if found["quick"] else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found['name']}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


@contextmanager
def scratch() -> Generator[Path]:
    """Creates a folder for this run on the disk of the cache, and removes it at the end."""
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE, prefix="run-") as folder:
        yield Path(folder)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
