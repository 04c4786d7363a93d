"""Rows of the GPU benchmark, their targets and verdicts, and the result files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

JSON_NAME, TABLE_NAME = "result.json", "result.md"
NOT_REACHED = "not reached"
_TIMES = ("s", "ms")
"""Units of which less is better."""


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    NOT_JUDGED = "not judged"
    """Measured at tiny sizes, or without a target."""
    NOT_MEASURED = "not measured"
    FAILED = "failed"
    WRONG = "wrong answer"


BAD = (Verdict.FAILED, Verdict.WRONG)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Bounds of a row's figure. None means that a bound does not apply."""

    least: float | None = None
    most: float | None = None
    ratio: float | None = None
    """Least ratio to the bare loop."""
    within: float | None = None
    """Largest relative difference from the bare figure."""

    def text(self, unit: str) -> str:
        parts = [
            f"≥ {self.least:,g} {unit}" if self.least is not None else "",
            f"≤ {self.most:,g} {unit}" if self.most is not None else "",
            f"≥ {self.ratio:g} of bare" if self.ratio is not None else "",
            f"within {self.within:.0%}" if self.within is not None else "",
        ]
        return ", ".join(part for part in parts if part)

    def is_met(self, stoker: float, ratio: float | None) -> bool:
        """Returns True if the figure meets all bounds. A bound without its bare figure fails."""
        if self.least is not None and stoker < self.least:
            return False
        if self.most is not None and stoker > self.most:
            return False
        if self.ratio is not None and (ratio is None or ratio < self.ratio):
            return False
        return self.within is None or (ratio is not None and abs(ratio - 1) <= self.within)


@dataclass(kw_only=True)
class Row:
    """One line of the result."""

    name: str
    unit: str
    target: Target
    stoker: float | None = None
    bare: float | None = None
    """Figure of the bare loop on the same device in the same run."""
    bare_note: str = ""
    """Description of the bare loop, or the reason for its absence."""
    answers: str = ""
    """Description of the answers that were compared."""
    wrong: str = ""
    """First difference between Stoker's answers and the expected ones. Empty if they are equal."""
    reason: str = NOT_REACHED
    """Reason for a row without a figure."""
    verdict: Verdict = Verdict.NOT_MEASURED
    device: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Load of the device during the row."""
    details: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ratio(self) -> float | None:
        """Ratio to the bare loop. For a time it is the bare time over Stoker's, so that more is
        better.
        """
        if not self.stoker or not self.bare:
            return None
        return self.bare / self.stoker if self.unit in _TIMES else self.stoker / self.bare

    def judge(self, *, is_tiny: bool) -> None:
        """Sets the verdict of a row that has a figure."""
        if self.stoker is None:
            return
        self.reason = ""
        if self.wrong:
            self.verdict = Verdict.WRONG
        elif is_tiny or not self.target.text(self.unit):
            self.verdict = Verdict.NOT_JUDGED
        else:
            met = self.target.is_met(self.stoker, self.ratio)
            self.verdict = Verdict.MET if met else Verdict.MISSED

    def skip(self, reason: str, verdict: Verdict = Verdict.NOT_MEASURED) -> None:
        """Sets the reason why the row has no figure."""
        self.verdict, self.reason = verdict, reason

    def as_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "target": self.target.text(self.unit),
            "ratio": self.ratio,
            "verdict": str(self.verdict),
        }


@dataclass
class Results:
    """All rows of a run. They are written to a folder after each row."""

    folder: Path
    facts: dict[str, Any]
    rows: list[Row]

    @property
    def is_good(self) -> bool:
        """False if an answer was wrong or a row failed. A missed target is no failure."""
        return not any(row.verdict in BAD for row in self.rows)

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"facts": self.facts, "rows": [row.as_json() for row in self.rows]}
        _replace(self.folder / JSON_NAME, json.dumps(document, indent=2, default=str) + "\n")
        _replace(self.folder / TABLE_NAME, self.table())

    def table(self) -> str:
        """Formats the rows as Markdown."""
        head = ["work", "Stoker", "bare", "ratio", "target", "verdict", "GPU busy", "note"]
        lines = [_line(head), _line(["---"] * len(head)), *map(_row_line, self.rows)]
        facts = [
            f"- {name}: {value}"
            for name, value in self.facts.items()
            if isinstance(value, str | int | float)
        ]
        return "\n".join(["# GPU benchmark", "", *facts, "", *lines, ""])


def _row_line(row: Row) -> str:
    busy = row.device.get("busy_percent")
    notes = [row.wrong, row.reason, row.answers, row.bare_note and f"bare: {row.bare_note}"]
    return _line(
        [
            row.name,
            _figure(row.stoker, row.unit),
            _figure(row.bare, row.unit),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.target.text(row.unit),
            row.verdict,
            "" if busy is None else f"{busy:.0f} %",
            "; ".join(note for note in notes if note),
        ]
    )


def _line(cells: Sequence[str]) -> str:
    clean = (cell.replace("|", "/").replace("\n", " ").strip()[:300] for cell in cells)
    return f"| {' | '.join(clean)} |"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def _replace(path: Path, text: str) -> None:
    """Writes a file at once, so that an interrupted run leaves a whole one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
