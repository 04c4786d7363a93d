"""Results of benchmarks: one file for each benchmark and class of processors."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import machine

Result = Mapping[str, Any]
Results = Mapping[str, Sequence[Result]]
"""Maps a benchmark to its results, in the order of `machine.CLASSES`."""
COMPLETE = ("idle", "workers")
"""Benchmarks whose pages show all series, because they compare parts of one server."""


def class_of(result: Result) -> str:
    """Returns the class of the result's processor. Old results state only its flags."""
    facts = result["machine"]
    return facts.get("class") or machine.class_of(facts["flags"])


def title_of_class(result: Result) -> str:
    return machine.CLASSES[class_of(result)]


def file_name(name: str, result: Result) -> str:
    """Returns the name of the result's file without its suffix."""
    return f"{name}.{class_of(result)}"


def read(folder: Path) -> dict[str, list[Result]]:
    """Returns the results of a folder. Files of old results have no class in their names."""
    order = list(machine.CLASSES)
    by_name: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        by_name.setdefault(path.stem.partition(".")[0], []).append(json.loads(path.read_text()))
    for results in by_name.values():
        results.sort(key=lambda result: order.index(class_of(result)))
    return by_name


def described(name: str, result: Result) -> str:
    """Returns how a result was measured: command, machine, date and commit."""
    commit = result["machine"]["commit"] or {}
    return (
        f'`make bench BENCH="{name}"`, {result["rounds"]} rounds on {machine_of(result)}, '
        f"{result['finished_at'][:10]}, commit {commit.get('id', 'unknown')[:12]}."
    )


def machine_of(result: Result) -> str:
    facts = result["machine"]
    flags = ", ".join(facts["flags"])
    return f"{facts['cores']} cores, {facts['cpu']}" + (f" ({flags})" if flags else "")


def shown(result: Result) -> list[Mapping[str, Any]]:
    """Returns the ratios and the series with an aim. Returns all series if there are none, and for
    the benchmarks of `COMPLETE`.
    """
    series = result["series"]
    if result["name"] in COMPLETE:
        return list(series)
    return [entry for entry in series if entry["aim"] or entry["unit"] == "x"] or list(series)


def table(series: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the series of one result."""
    lines = ["|  | median | least | most |  | aim |", "| --- | --- | --- | --- | --- | --- |"]
    for row in series:
        numbers = " | ".join(f"{row[name]:.3g}" for name in ("median", "min", "max"))
        aim = f"{row['aim']}: {row['verdict']}" if row["aim"] else ""
        lines.append(f"| {row['label']} | {numbers} | {row['unit']} | {aim} |")
    return lines


def side_by_side(columns: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Returns a table that compares results: median (least to most) of each series.

    Args:
        columns: maps a column's title to the series of a result.
    """
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for title, series in columns.items():
        for entry in series:
            rows.setdefault(entry["label"], {})[title] = entry
    lines = [
        f"|  | {' | '.join(columns)} |  | aim |",
        f"| --- |{' --- |' * (len(columns) + 2)}",
    ]
    for label, by_title in rows.items():
        cells = " | ".join(_cell(by_title.get(title)) for title in columns)
        entry = next(iter(by_title.values()))
        aim = next((entry["aim"] for entry in by_title.values() if entry["aim"]), "")
        lines.append(f"| {label} | {cells} | {entry['unit']} | {aim} |")
    return lines


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    median, least, most = (_number(entry[name]) for name in ("median", "min", "max"))
    text = median if least == most else f"{median} ({least} to {most})"
    return f"{text}, {entry['verdict']}" if entry["verdict"] else text


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
