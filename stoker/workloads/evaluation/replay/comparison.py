"""How far two answers to the same request are from one another, whatever endpoint gave them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

Measure = Literal["top_labels", "cosine", "texts"]

BOUNDS: dict[Measure, float] = {"top_labels": 1.0, "cosine": 0.99, "texts": 0.5}
"""What agrees less answers otherwise. A text goes its own way from the first token that two
precisions rank in another order, which is often no worse."""
_LABELS = ("label", "entity", "entity_group", "token_str")
_PLACES = frozenset({"start", "index", "box", "mask", "timestamp"})
"""Labels with one of these are of a part of the input; others are ranked, the likeliest first."""
EACH_TIME = frozenset(
    {
        "id",
        "created",
        "created_at",
        "completed_at",
        "model",
        "usage",
        "object",
        "system_fingerprint",
    }
)
"""Of an answer, and not of what the model said."""
UNCOMPARED = EACH_TIME | {"start", "end", "index", "token", "role", "type", "finish_reason"}
"""Those, and what follows from a text beside it."""


@dataclass
class Comparison:
    """Of all answers that were added."""

    difference: float = 0.0
    """The largest between two numbers in the same place."""
    cosines: list[float] = field(default_factory=list[float])
    labels: list[bool] = field(default_factory=list[bool])
    """Whether each top label is equal."""
    texts: list[bool] = field(default_factory=list[bool])
    """Whether each text is equal."""
    unread: int = 0
    """Answers that were too large to be read: of these the digests were compared."""

    @property
    def measure(self) -> Measure:
        if self.labels:
            return "top_labels"
        return "cosine" if self.cosines else "texts"

    @property
    def agreement(self) -> float:
        if self.measure == "cosine":
            return min(self.cosines)
        found = self.labels or self.texts
        return sum(found) / len(found) if found else 1.0

    @property
    def differs(self) -> bool:
        return not (self.agreement >= BOUNDS[self.measure] and math.isfinite(self.difference))

    @property
    def caution(self) -> str:
        """Says how many answers were compared as a whole only; empty if none was."""
        what = "answer was" if self.unread == 1 else "answers were"
        return (
            f"{self.unread} {what} too large to be compared number by number: only the digest "
            "was compared."
            if self.unread
            else ""
        )

    def merge(self, other: "Comparison") -> None:
        """Adds what another comparison has found."""
        self._widen(other.difference)
        self.cosines += other.cosines
        self.labels += other.labels
        self.texts += other.texts
        self.unread += other.unread

    def in_words(self) -> str:
        """What is not as it should be, of a `differs`."""
        return f"{self._what_differs()} {self.caution}".strip()

    def _what_differs(self) -> str:
        if not math.isfinite(self.difference):
            return "Some of its numbers are none."
        if self.measure == "cosine":
            return f"The least cosine between two vectors is {self.agreement:.4f}."
        found = self.labels or self.texts
        what = "top labels" if self.labels else "texts"
        return f"{found.count(False)} of {len(found)} {what} are others."

    def add(self, reference: bytes, found: bytes) -> None:
        """Compare an answer with the reference's: JSON, or whatever else, as a whole."""
        try:
            pair = json.loads(reference), json.loads(found)
        except ValueError:
            self.texts.append(reference == found)
            return
        self._walk(*pair)

    def _walk(self, ours: Any, theirs: Any) -> None:
        if is_number(ours) and is_number(theirs):
            self._number(ours, theirs)
        elif isinstance(ours, str):
            self.texts.append(ours == theirs)
        elif isinstance(ours, list):
            self._lists(cast("list[Any]", ours), theirs)
        elif isinstance(ours, dict):
            self._objects(cast("dict[str, Any]", ours), theirs)
        else:
            self.texts.append(ours == theirs)

    def _number(self, ours: float, theirs: float) -> None:
        self._widen(abs(ours - theirs))

    def _widen(self, distance: float) -> None:
        # A NaN is never the larger one.
        self.difference = distance if math.isnan(distance) else max(self.difference, distance)

    def _lists(self, ours: list[Any], theirs: Any) -> None:
        others = cast("list[Any]", theirs) if isinstance(theirs, list) else []
        if len(ours) > 1 and all(map(is_number, [*ours, *others])):
            for pair in zip(ours, others, strict=False):
                self._number(*pair)
            self.cosines.append(cosine(ours, others))
            return
        if ours and all(label_of(one) is not None for one in ours):
            self._labelled(ours, others)
            return
        if len(ours) != len(others):
            self.texts.append(False)
        for one, other in zip(ours, others, strict=False):
            self._walk(one, other)

    def _labelled(self, ours: list[dict[str, Any]], theirs: list[Any]) -> None:
        """Ranked labels, or the labels of a text's or an image's parts."""
        labels = [label_of(one) for one in theirs]
        if not _PLACES & ours[0].keys() or "relevance_score" in ours[0]:
            self.labels.append(bool(labels) and labels[0] == label_of(ours[0]))
            scores: dict[str | None, Any] = {label_of(one): one for one in theirs}
            for one in ours:
                self._scores(one, scores.get(label_of(one), {}))
            return
        for at, one in enumerate(ours):
            self.labels.append(at < len(labels) and labels[at] == label_of(one))
            if self.labels[-1]:
                self._scores(one, theirs[at])
        self.labels += [False] * (len(theirs) - len(ours))

    def _scores(self, ours: dict[str, Any], theirs: Any) -> None:
        for name in ("score", "relevance_score"):
            if is_number(ours.get(name)) and is_number(theirs.get(name)):
                self._number(ours[name], theirs[name])

    def _objects(self, ours: dict[str, Any], theirs: Any) -> None:
        others = cast("dict[str, Any]", theirs) if isinstance(theirs, dict) else {}
        for name in ours.keys() | others.keys():
            if name not in UNCOMPARED:
                self._walk(ours.get(name), others.get(name))


def is_number(value: Any) -> bool:
    """Of JSON: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def label_of(value: Any) -> str | None:
    """The label of an entry of an answer; None where it has none."""
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value)
    if "relevance_score" in found:
        return str(found.get("index"))
    return next((found[name] for name in _LABELS if isinstance(found.get(name), str)), None)


def cosine(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """0 for vectors of other lengths, and for a zero beside what is none."""
    if len(ours) != len(theirs):
        return 0.0
    norms = math.hypot(*ours) * math.hypot(*theirs)
    if norms == 0:
        return float(list(ours) == list(theirs))
    return math.fsum(map(lambda one, other: one * other, ours, theirs)) / norms
