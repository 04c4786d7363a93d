"""A request for a task while it is worked on: items, their samples, and what came of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from stoker.models.stages.base import InputError, StreamWriter
from stoker.models.tasks.registry import WORKS
from stoker.replica.batching import Entry
from stoker.wire.phases import Phases
from stoker.wire.protocol import Work

_REPORTED_EVERY = 0.005
"""Progress is reported in steps of at least this share of the work."""
_CHECKED = (Mapping, list, tuple, float)
"""Results that `_check_numbers` looks into, as it does into arrays."""
_WRITTEN: Mapping[str, Any] = {}
"""Takes the place of an output that is not needed any more."""


class NoNumbersError(ValueError):
    """A result holds a NaN or an infinity."""


@dataclass(eq=False)
class TaskRequest:
    """What is known of a request; the threads of its `Worker` share it."""

    work: Work
    missing: int = field(init=False)
    """Items without a result yet."""
    results: list[Any] = field(init=False)
    """One an item, None until it is there."""
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    """Item → samples without an output yet."""
    outputs: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])
    """Item → an output a sample, None until it is there."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """What was worked on so far, as `Result.counts`."""
    held: dict[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])
    """Item → its samples that wait for the first output of its first sample."""
    samples: int = 0
    """Of its items that were prepared."""
    fractions: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Item and position of a sample → how much of it is computed, 0 to 1."""
    reported: float = 0.0
    """The progress that was reported last, 0 to 1."""
    writer: StreamWriter | None = None
    """Of an answer that is streamed."""
    written: int = 0
    """Samples whose outputs the writer has had."""
    done: bool = False
    phases: Phases = field(default_factory=lambda: Phases("prepare"))

    def __post_init__(self) -> None:
        self.missing = len(self.work.items)
        self.results = [None] * self.missing

    @property
    def id(self) -> int:
        return self.work.id

    def prepared(self, item: int, samples: int) -> None:
        """An item was made so many samples of, whose outputs are to come."""
        self.samples += samples
        self.waiting[item] = samples
        self.outputs[item] = [None] * samples

    def add(self, item: int, position: int, output: Mapping[str, Any]) -> None:
        """Take the output of a sample."""
        self.outputs[item][position] = output
        self.waiting[item] -= 1

    def next_output(self) -> Mapping[str, Any] | None:
        """Of a stream, the next sample's output in their order; None where it is not there yet."""
        outputs = self.outputs[0]
        if self.written == len(outputs) or outputs[self.written] is None:
            return None
        output, outputs[self.written] = outputs[self.written], _WRITTEN
        self.written += 1
        return output

    @property
    def is_written(self) -> bool:
        """Of a stream, whether the writer has had all outputs."""
        return self.written == len(self.outputs[0])

    def progress(self) -> float | None:
        """The share of its work that is done, 0 to 1; None where that is hardly news."""
        share = sum(self.fractions.values()) / max(1, self.samples)
        if share < self.reported + _REPORTED_EVERY:
            return None
        self.reported = share
        return share

    def place(self, item: int, error: InputError | None) -> str:
        """The request's field at fault for an error, or the item itself without one."""
        task = WORKS[self.work.task]
        if error:
            indexed = error.of_item and not self.work.single
            return task.place(error.field, item) if indexed else error.field
        return task.input_field if self.work.single else task.place(task.input_field, item)

    def encoded(self) -> bytes:
        """The answer, once each item has its result. Raises `NoNumbersError`."""
        # Checked before they may become base64, and after it if they are computed at the end only.
        _check_numbers(self.results)
        result = WORKS[self.work.task].finish(self.work, self.results)
        if isinstance(result, bytes):
            return result
        if not all(isinstance(one, _CHECKED) or hasattr(one, "dtype") for one in self.results):
            _check_numbers(result)
        return msgspec.json.encode(result, enc_hook=_plain)


def _check_numbers(value: Any) -> None:
    """Raise `NoNumbersError` if a NaN or an infinity is in a result: JSON would have null there."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoNumbersError
    elif isinstance(value, Mapping):
        for one in cast("Mapping[Any, Any]", value).values():
            _check_numbers(one)
    elif isinstance(value, list | tuple):
        listed = cast("Sequence[Any]", value)
        if len(listed) > 1 and set(map(type, listed)) == {float}:
            # Their sum is finite only if all of them are.
            _check_numbers(float(sum(listed)))
        else:
            for one in listed:
                _check_numbers(one)
    elif "float" in str(getattr(value, "dtype", "")):
        import numpy

        if not numpy.isfinite(value).all():
            raise NoNumbersError


def _plain(value: Any) -> Any:
    """numpy and torch scalars and arrays as JSON numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result holds a {type(value).__name__}")
