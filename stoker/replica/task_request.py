"""The state of a task's request during the work on it: items, their samples and outputs."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from stoker.models.stages.base import InputError, NoNumbersError, Stages, StreamWriter
from stoker.models.tasks.registry import WORKS
from stoker.replica.batch_choice import QueuedSample
from stoker.wire.phases import Phases
from stoker.wire.protocol import Work

log = logging.getLogger(__name__)

_REPORTED_EVERY = 0.005
"""Minimum share of the work between two progress reports."""
_SHORT_TEXT = 2000
"""Maximum characters of a short text."""
_CHECKED = (Mapping, list, tuple, float)
"""Types of results that `_check_numbers` examines inside, in addition to arrays."""
_WITHOUT_NUMBERS = frozenset({str, int, bool, bytes, type(None)})
"""Types of results that are neither NaN nor infinite."""
_WRITTEN: Mapping[str, Any] = {}
"""Replaces an output that is no longer needed."""


@dataclass(eq=False)
class RequestState:
    """State of a request, shared by the threads of its `TaskWorker`."""

    work: Work
    missing: int = field(init=False)
    """Number of items without a result."""
    results: list[Any] = field(init=False)
    """Results by item. None until it is complete."""
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    """Maps an item to its number of samples without an output."""
    outputs: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])
    """Maps an item to one output per sample. None until it arrives."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """Counts of the completed work, as `RequestResult.counts`."""
    held: dict[int, list[QueuedSample]] = field(default_factory=dict[int, list[QueuedSample]])
    """Maps an item to its samples that wait for the first output of its first sample."""
    samples: int = 0
    """Number of samples of the prepared items."""
    fractions: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Maps an item and a sample's position to the computed share of the sample, 0 to 1."""
    reported: float = 0.0
    """Progress that was reported last, 0 to 1."""
    writer: StreamWriter | None = None
    """Writer of a streamed answer."""
    written: int = 0
    """Number of samples with outputs that the writer received."""
    invalid: set[int] = field(default_factory=set[int])
    """Items with a sample for which the model returned NaN or infinity."""
    done: bool = False
    is_repeated: bool = False
    """True if the whole request is computed a second time."""
    phases: Phases = field(default_factory=lambda: Phases("prepare"))

    def __post_init__(self) -> None:
        self.missing = len(self.work.items)
        self.results = [None] * self.missing

    @property
    def id(self) -> int:
        return self.work.id

    @property
    def is_short_text(self) -> bool:
        """True if the only item is a text of a few hundred words."""
        items = self.work.items
        return len(items) == 1 and isinstance(items[0], str) and len(items[0]) <= _SHORT_TEXT

    @property
    def is_direct(self) -> bool:
        """True if the results need no forward pass."""
        return WORKS[self.work.task].direct is not None

    def repeat(self) -> None:
        """Forgets all results, so that the request is computed again."""
        self.is_repeated = True
        # Two-tower models compute the texts of one object only once.
        parameters = dict(self.work.parameters)
        self.work = msgspec.structs.replace(self.work, parameters=parameters)
        self.missing = len(self.work.items)
        self.results = [None] * self.missing
        for values in (self.waiting, self.outputs, self.counts, self.held, self.fractions):
            values.clear()
        self.invalid.clear()
        self.samples = 0

    def prepared(self, item: int, samples: int) -> None:
        """Records the number of samples of a prepared item. Their outputs follow."""
        self.samples += samples
        self.waiting[item] = samples
        self.outputs[item] = [None] * samples

    def add(self, item: int, position: int, output: Mapping[str, Any]) -> None:
        """Adds the output of a sample."""
        self.outputs[item][position] = output
        self.waiting[item] -= 1

    def finish(self, item: int, stages: Stages) -> None:
        """Sets the result of an item. Raises `InputError` and other errors of the stages."""
        work = self.work
        if direct := WORKS[work.task].direct:
            self.results[item] = direct(stages, work.items[item], work.parameters)
            return
        outputs = self.outputs.pop(item)
        if item not in self.invalid:
            self.results[item] = stages.postprocess(outputs, work.parameters)

    def count(self, stages: Stages, output: Mapping[str, Any]) -> None:
        """Adds the usage of an output to the counts."""
        try:
            for name, value in stages.counts(output).items():
                self.counts[name] = self.counts.get(name, 0) + value
        except Exception:
            # A failed count must not fail the answer.
            log.exception("output could not be counted")

    def next_output(self) -> Mapping[str, Any] | None:
        """Returns a stream's next output in the samples' order. None if it has not arrived."""
        outputs = self.outputs[0]
        if self.written == len(outputs) or outputs[self.written] is None:
            return None
        output, outputs[self.written] = outputs[self.written], _WRITTEN
        self.written += 1
        return output

    @property
    def is_written(self) -> bool:
        """True if a stream's writer received all outputs."""
        return self.written == len(self.outputs[0])

    def progress(self) -> float | None:
        """Returns the completed share of the work, 0 to 1. None if it hardly changed."""
        share = sum(self.fractions.values()) / max(1, self.samples)
        if share < self.reported + _REPORTED_EVERY:
            return None
        self.reported = share
        return share

    def place(self, item: int, error: InputError | None) -> str:
        """Returns the request's field at fault for an error, or the item itself if `error` is
        None.
        """
        task = WORKS[self.work.task]
        if error:
            indexed = error.of_item and not self.work.single
            return task.place(error.field, item) if indexed else error.field
        return task.input_field if self.work.single else task.place(task.input_field, item)

    def encoded(self) -> bytes:
        """Returns the answer once each item has its result. Raises `NoNumbersError`."""
        # Checked before numbers may become base64. Checked again below if they are computed only at
        # the end.
        if self.invalid:
            raise NoNumbersError
        _check_numbers(self.results)
        result = WORKS[self.work.task].finish(self.work, self.results)
        if isinstance(result, bytes):
            return result
        if not all(
            isinstance(value, _CHECKED) or hasattr(value, "dtype") for value in self.results
        ):
            _check_numbers(result)
        return msgspec.json.encode(result, enc_hook=_plain)


def _check_numbers(value: Any) -> None:
    """Raises `NoNumbersError` if a result contains a NaN or an infinity. JSON would have null
    there.
    """
    if type(value) in _WITHOUT_NUMBERS:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoNumbersError
    elif isinstance(value, Mapping):
        for element in cast("Mapping[Any, Any]", value).values():
            _check_numbers(element)
    elif isinstance(value, list | tuple):
        listed = cast("Sequence[Any]", value)
        if len(listed) > 1 and set(map(type, listed)) == {float}:
            # The sum is finite only if all numbers are.
            _check_numbers(float(sum(listed)))
        else:
            for element in listed:
                _check_numbers(element)
    elif "float" in str(getattr(value, "dtype", "")):
        import numpy

        if not numpy.isfinite(value).all():
            raise NoNumbersError


def _plain(value: Any) -> Any:
    """Converts numpy and torch scalars and arrays to JSON numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result holds a {type(value).__name__}")
