"""What every benchmark shares: series of rounds, ratios with their aims, tables, result files."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
CACHE = HERE / ".cache"
RESULTS = HERE / "results"

QUIET_LOAD = 0.5
"""One-minute load from which on others share the machine visibly."""

_LIBRARIES = ("torch", "transformers", "tokenizers", "fastapi", "uvicorn", "litserve")


@dataclass
class Series:
    """One figure, a value a round."""

    label: str
    unit: str
    values: list[float] = field(default_factory=list[float])
    aim: str = ""
    meets: Callable[[float], bool] | None = None
    """Whether a value meets the aim."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Whether the median meets the aim; `unclear` where the rounds do not agree on it."""
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
            "values": self.values,
            "aim": self.aim or None,
            "verdict": self.verdict or None,
        }


@dataclass
class Report:
    """What one benchmark found."""

    name: str
    title: str
    series: list[Series] = field(default_factory=list[Series])
    notes: list[str] = field(default_factory=list[str])

    def add(
        self,
        label: str,
        unit: str,
        value: float,
        *,
        aim: str = "",
        meets: Callable[[float], bool] | None = None,
    ) -> None:
        """Add a round's value to the series of that label."""
        for series in self.series:
            if series.label == label:
                series.values.append(value)
                return
        self.series.append(Series(label, unit, [value], aim, meets))


def at_most(limit: float) -> Callable[[float], bool]:
    return lambda value: value <= limit


def at_least(limit: float) -> Callable[[float], bool]:
    return lambda value: value >= limit


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; `share` from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Any]:
    """Facts that a figure means nothing without. Taken when a benchmark starts."""
    return {
        "cores": cores(),
        "cpu": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "load_1m": round(os.getloadavg()[0], 2),
    }


def cores() -> int:
    return len(os.sched_getaffinity(0))


def table(report: Report, facts: dict[str, Any], rounds: int) -> str:
    """The report as text."""
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
    lines += ["", f"  {rounds} rounds on {facts['cores']} cores, {facts['cpu']}."]
    if facts["load_1m"] > QUIET_LOAD:
        lines.append(
            f"  WARNING: load {facts['load_1m']} at the start. Others were using the machine: "
            "read the ratios with care and the times not at all."
        )
    lines += [f"  {note}" for note in report.notes]
    return "\n".join(lines) + "\n"


def document(report: Report, facts: dict[str, Any], rounds: int) -> dict[str, Any]:
    return {
        "name": report.name,
        "title": report.title,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": rounds,
        "machine": facts,
        "series": [series.as_json() for series in report.series],
        "notes": report.notes,
    }


def keep(found: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{found['name']}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


@contextmanager
def scratch() -> Generator[Path]:
    """A folder of this run's own, on the disk of the cache, removed at the end."""
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE, prefix="run-") as folder:
        yield Path(folder)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
