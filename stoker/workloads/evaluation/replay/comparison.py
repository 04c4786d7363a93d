"""Measures how much two answers to the same request differ, for any endpoint."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

Measure = Literal["top_labels", "cosine", "texts"]

BOUNDS: dict[Measure, float] = {"top_labels": 1.0, "cosine": 0.99, "texts": 0.5}
"""Minimum agreement per measure. Below it, an answer counts as different. Texts diverge from the
first token that two precisions rank in another order, which is often no worse.
"""
_LABELS = ("label", "entity", "entity_group", "token_str")
_PLACES = frozenset({"start", "index", "box", "mask", "timestamp"})
"""Fields of labels that belong to a part of the input. Other labels are ranked, the most likely
first.
"""
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
"""Fields that belong to the response and not to the model's output."""
UNCOMPARED = EACH_TIME | {"start", "end", "index", "token", "role", "type", "finish_reason"}
"""Fields that are not compared: fields of the response, and fields that follow from a text next to
them.
"""


@dataclass
class Comparison:
    """Comparison of all answer pairs that were added."""

    difference: float = 0.0
    """Largest difference between two numbers in the same place."""
    cosines: list[float] = field(default_factory=list[float])
    labels: list[bool] = field(default_factory=list[bool])
    """For each top label, True if it is equal."""
    texts: list[bool] = field(default_factory=list[bool])
    """For each text, True if it is equal."""
    unread: int = 0
    """Number of answers that were too large to parse. Their digests were compared."""

    @property
    def measure(self) -> Measure:
        if self.labels:
            return "top_labels"
        return "cosine" if self.cosines else "texts"

    @property
    def agreement(self) -> float:
        if self.measure == "cosine":
            return min(self.cosines)
        matches = self.labels or self.texts
        return sum(matches) / len(matches) if matches else 1.0

    @property
    def differs(self) -> bool:
        return not (self.agreement >= BOUNDS[self.measure] and math.isfinite(self.difference))

    @property
    def caution(self) -> str:
        """Number of answers that were compared only as a whole, in words. Empty if none were."""
        subject = "answer was" if self.unread == 1 else "answers were"
        return (
            f"{self.unread} {subject} too large to be compared number by number: only the digest "
            "was compared."
            if self.unread
            else ""
        )

    def merge(self, other: "Comparison") -> None:
        """Adds the results of another comparison."""
        self._widen(other.difference)
        self.cosines += other.cosines
        self.labels += other.labels
        self.texts += other.texts
        self.unread += other.unread

    def in_words(self) -> str:
        """Describes in words how a `differs` differs."""
        return f"{self._what_differs()} {self.caution}".strip()

    def _what_differs(self) -> str:
        if not math.isfinite(self.difference):
            return "Some numbers are NaN or infinite."
        if self.measure == "cosine":
            return f"The least cosine between two vectors is {self.agreement:.4f}."
        matches = self.labels or self.texts
        noun = "top labels" if self.labels else "texts"
        return f"{matches.count(False)} of {len(matches)} {noun} differ."

    def add(self, reference: bytes, found: bytes) -> None:
        """Compares an answer with the reference's. JSON is compared by its fields, other content as
        a whole.
        """
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
        # max() would never choose a NaN.
        self.difference = distance if math.isnan(distance) else max(self.difference, distance)

    def _lists(self, ours: list[Any], theirs: Any) -> None:
        their_items = cast("list[Any]", theirs) if isinstance(theirs, list) else []
        if len(ours) > 1 and all(map(is_number, [*ours, *their_items])):
            for pair in zip(ours, their_items, strict=False):
                self._number(*pair)
            self.cosines.append(cosine(ours, their_items))
            return
        if ours and all(label_of(item) is not None for item in ours):
            self._labelled(ours, their_items)
            return
        if len(ours) != len(their_items):
            self.texts.append(False)
        for item, other in zip(ours, their_items, strict=False):
            self._walk(item, other)

    def _labelled(self, ours: list[dict[str, Any]], theirs: list[Any]) -> None:
        """Compares ranked labels, or the labels of parts of a text or an image."""
        labels = [label_of(entry) for entry in theirs]
        if not _PLACES & ours[0].keys() or "relevance_score" in ours[0]:
            self.labels.append(bool(labels) and labels[0] == label_of(ours[0]))
            scores: dict[str | None, Any] = {label_of(entry): entry for entry in theirs}
            for entry in ours:
                self._scores(entry, scores.get(label_of(entry), {}))
            return
        for at, entry in enumerate(ours):
            self.labels.append(at < len(labels) and labels[at] == label_of(entry))
            if self.labels[-1]:
                self._scores(entry, theirs[at])
        self.labels += [False] * (len(theirs) - len(ours))

    def _scores(self, ours: dict[str, Any], theirs: Any) -> None:
        for name in ("score", "relevance_score"):
            if is_number(ours.get(name)) and is_number(theirs.get(name)):
                self._number(ours[name], theirs[name])

    def _objects(self, ours: dict[str, Any], theirs: Any) -> None:
        their_fields = cast("dict[str, Any]", theirs) if isinstance(theirs, dict) else {}
        for name in ours.keys() | their_fields.keys():
            if name not in UNCOMPARED:
                self._walk(ours.get(name), their_fields.get(name))


def is_number(value: Any) -> bool:
    """True for a number of JSON. Booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def label_of(value: Any) -> str | None:
    """Returns the label of an entry of an answer, or None."""
    if not isinstance(value, dict):
        return None
    entry = cast("dict[str, Any]", value)
    if "relevance_score" in entry:
        return str(entry.get("index"))
    return next((entry[name] for name in _LABELS if isinstance(entry.get(name), str)), None)


def cosine(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the cosine of two vectors. Returns 0 if their lengths differ or only one of them is
    zero.
    """
    if len(ours) != len(theirs):
        return 0.0
    norms = math.hypot(*ours) * math.hypot(*theirs)
    if norms == 0:
        return float(list(ours) == list(theirs))
    return math.fsum(map(lambda number, other: number * other, ours, theirs)) / norms
