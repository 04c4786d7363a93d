"""Records the passes of a model over buckets of batches and replays them.

A recorded pass is a CUDA graph: the GPU launches its kernels without Python, in a tenth of the
time. The first batches of a bucket run as usual. Once a bucket is used often, its pass is recorded
between batches, compared with a usual pass, and replayed from then on.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.models.engines.buckets import Batch, Buckets, PaddedBuckets, ShapeBucket
from stoker.models.engines.graph_demand import GraphDemand
from stoker.models.engines.probing import difference
from stoker.models.engines.recorders import Recorder, Recording
from stoker.models.engines.recording_guard import DeviceLostError, RecordingGuard
from stoker.models.engines.sharing import HALF_TOLERANCE, TOLERANCE
from stoker.models.engines.shortage import is_out_of_memory
from stoker.models.engines.torch import TorchEngine
from stoker.models.engines.transfers import Outputs
from stoker.models.stages.kinds import ModelKind
from stoker.wire.passes import RecordedPasses

log = logging.getLogger(__name__)

Run = Callable[[Hashable, Batch], Outputs]
"""Runs a pass as usual. See `TorchEngine.run`."""

STEP_S = 0.01
"""Time in seconds after which a recording pauses at the end of a pass, so that batches can run."""
WARM_UPS, TIMINGS = 2, 3
"""Number of passes before a recording, and of passes that are measured after it."""
MOST_GRAPHS = 64
"""Maximum number of recorded passes."""
MOST_ELEMENTS = 1 << 25
"""Maximum number of elements of a recorded pass's inputs. Launches hardly matter in larger
passes.
"""
_FULL = "The device has too little free memory."


class UnfitPassError(Exception):
    """The model's passes cannot be replayed. The message says why."""


@dataclass(frozen=True)
class _Graph:
    inputs: dict[str, torch.Tensor]
    recording: Recording


@dataclass(frozen=True)
class _Unfinished:
    """Recording that has begun."""

    bucket: ShapeBucket
    steps: Generator[None, None, _Graph | None]
    """Pauses after each pass. Returns the graph, or None if it is slower than a usual pass."""


@dataclass(eq=False)
class GraphCache:
    """Recorded passes of one model. One thread uses it."""

    run: Run
    buckets: Buckets
    recorder: Recorder
    most: int = MOST_GRAPHS
    tolerance: float = TOLERANCE
    guard: RecordingGuard = field(default_factory=RecordingGuard)
    step_s: float = STEP_S
    _graphs: OrderedDict[ShapeBucket, _Graph] = field(
        default_factory=OrderedDict[ShapeBucket, _Graph]
    )
    """Recorded passes, least recently used first."""
    _demand: GraphDemand = field(default_factory=GraphDemand)
    _unfinished: _Unfinished | None = None
    _skipped: set[ShapeBucket] = field(default_factory=set[ShapeBucket])
    """Buckets that are not recorded: their padded pass takes longer than a usual pass, or ended an
    earlier replica.
    """
    _refused: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    """Reasons by form of bucket."""
    _stop_reason: str = ""
    """Reason that nothing more is recorded."""
    state: RecordedPasses = field(init=False)

    def __post_init__(self) -> None:
        self._stop_reason = self.guard.problem
        self._publish()

    def replay(self, call: Hashable, batch: Batch) -> Outputs | None:
        """Returns the outputs of a pass, valid until the next call. None if the batch must run as
        usual.
        """
        bucket = self.buckets.bucket(call, batch)
        graph = self._graphs.get(bucket)
        if graph is None:
            if self._is_recordable(bucket):
                self._demand.count(bucket, batch)
            return None
        self._graphs.move_to_end(bucket)
        return self._replayed(graph, batch)

    def _replayed(self, graph: _Graph, batch: Batch) -> Outputs:
        self.buckets.write(graph.inputs, batch)
        return self.buckets.cut(graph.recording.replay(), graph.inputs, batch)

    def _is_recordable(self, bucket: ShapeBucket) -> bool:
        return not (
            self._stop_reason
            or bucket.form in self._refused
            or bucket in self._skipped
            or bucket.elements > MOST_ELEMENTS
        )

    @property
    def _next(self) -> ShapeBucket | None:
        """Bucket that `record` would work on."""
        return self._unfinished.bucket if self._unfinished else self._demand.best

    @property
    def is_wanting(self) -> bool:
        """True if `record` would record a pass."""
        return self._next is not None

    @property
    def pays(self) -> bool:
        """True if the time that `record` takes is worth a delay of requests."""
        bucket = self._next
        return bucket is not None and self._demand.pays(bucket)

    @torch.inference_mode()
    def record(self) -> None:
        """Continues the recording of a pass for about `step_s` seconds. If no recording has begun,
        begins the one that saves the most time.

        Raises:
            DeviceLostError: the device can no longer compute.
        """
        unfinished = self._unfinished or self._begun()
        if unfinished:
            with self.guard.recording(unfinished.bucket.name):
                self._advance(unfinished)
        self._publish()

    def _begun(self) -> _Unfinished | None:
        bucket = self._demand.best
        if bucket is None:
            return None
        if not self.guard.allows(bucket.name):
            log.warning("a pass is not recorded, because it ended a replica: %s", bucket.name)
            self._skip(bucket)
            return None
        if not self.recorder.has_room():
            self._stop(_FULL)
            return None
        steps = self._steps(bucket, self._demand.example(bucket))
        self._unfinished = _Unfinished(bucket, steps)
        return self._unfinished

    def _advance(self, unfinished: _Unfinished) -> None:
        ends_at = time.monotonic() + self.step_s
        try:
            next(unfinished.steps)
            while time.monotonic() < ends_at:
                next(unfinished.steps)
        except StopIteration as end:
            self._unfinished = None
            self._keep(unfinished.bucket, end.value)
        except Exception as error:
            self._unfinished = None
            self._fail(unfinished.bucket, error)

    def _steps(self, bucket: ShapeBucket, batch: Batch) -> Generator[None, None, _Graph | None]:
        """Records the pass of a bucket. See `_Unfinished.steps`.

        Raises the errors of the recorder, and `UnfitPassError`.
        """
        inputs = self.buckets.inputs(bucket, batch)
        for _ in range(WARM_UPS):
            self.recorder.warm_up(lambda: self.run(bucket.call, inputs))
            yield
        while len(self._graphs) >= self.most:
            self._graphs.popitem(last=False)
        recording = self.recorder.record(lambda: self.run(bucket.call, inputs))
        graph = _Graph(inputs, recording)
        yield
        trial = _trial(batch)
        ours, theirs = self._replayed(graph, trial), self.run(bucket.call, trial)
        if not _difference(ours, theirs) <= self.tolerance:
            raise UnfitPassError("a replayed pass has other outputs than a usual one")
        yield
        replay_s = yield from self._least_s(lambda: self._replayed(graph, batch))
        usual_s = yield from self._least_s(lambda: self.run(bucket.call, batch))
        self._demand.measured(bucket, 1 - replay_s / usual_s if usual_s else 0.0)
        return graph if replay_s <= usual_s else None

    def _least_s(self, compute: Callable[[], Outputs]) -> Generator[None, None, float]:
        """Measures a pass several times. Returns the shortest duration in seconds."""
        durations: list[float] = []
        for _ in range(TIMINGS):
            durations.append(self.recorder.seconds(compute))
            yield
        return min(durations)

    def _keep(self, bucket: ShapeBucket, graph: _Graph | None) -> None:
        if graph is None:
            log.info("a recorded pass is slower: %s", bucket.name)
            self._skip(bucket)
            return
        log.info("recorded a pass: %s", bucket.name)
        self._demand.drop(bucket)
        self._graphs[bucket] = graph

    def _fail(self, bucket: ShapeBucket, error: Exception) -> None:
        log.warning("passes are not recorded", exc_info=error)
        # Errors of CUDA have several lines of advice.
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        if not self.recorder.is_usable():
            raise DeviceLostError(f"The device failed while a pass was recorded: {reason}")
        if is_out_of_memory(error):
            self._stop(_FULL)
            return
        self._refused[bucket.form] = f"The model's passes cannot be recorded: {reason}"
        self._demand.drop_form(bucket.form)
        for recorded in [recorded for recorded in self._graphs if recorded.form == bucket.form]:
            del self._graphs[recorded]

    def _skip(self, bucket: ShapeBucket) -> None:
        self._skipped.add(bucket)
        self._demand.drop(bucket)

    def _stop(self, reason: str) -> None:
        self._stop_reason = reason
        self._demand.clear()

    def clear(self) -> None:
        """Drops all recorded passes, so that their memory is free."""
        self._graphs.clear()
        self._unfinished = None
        self._demand.clear()
        self._publish()

    def _publish(self) -> None:
        problem = next(iter(self._refused.values()), self._stop_reason)
        self.state = RecordedPasses(len(self._graphs), problem)


def _trial(batch: Batch) -> dict[str, torch.Tensor]:
    """Returns a batch of other content. It has one row less if it has a row per sample, so that a
    row of the bucket is unused.
    """
    sizes = {value.shape[0] if value.dim() else 0 for value in batch.values()}
    rows = max(1, max(sizes) - 1) if len(sizes) == 1 else None
    return {name: _other(name, value[:rows] if rows else value) for name, value in batch.items()}


def _other(name: str, value: torch.Tensor) -> torch.Tensor:
    """Returns valid values of the same shape."""
    return value.flip(-1) if name == "input_ids" or value.is_floating_point() else value


def _difference(ours: Outputs, theirs: Outputs) -> float:
    """Returns the largest difference of outputs that have the same shape in both.

    Other outputs contain padding that is not cut off, which no caller reads. Raises
    `UnfitPassError` if a value is no tensor, because a replay does not compute it.
    """
    tensors = {name: value for name, value in theirs.items() if value is not None}
    if set(tensors) != {name for name, value in ours.items() if value is not None}:
        raise UnfitPassError("a replayed pass lacks outputs")
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise UnfitPassError(f"the output {name} is no tensor")
        if ours[name].shape[:1] != value.shape[:1]:
            raise UnfitPassError(f"the output {name} cannot be divided among the rows")
    names = [name for name, value in tensors.items() if value.shape == ours[name].shape]
    if not names:
        raise UnfitPassError("the outputs have other shapes")
    return difference(_floats(ours, names), _floats(tensors, names))


def _floats(outputs: Mapping[str, Any], names: list[str]) -> dict[str, torch.Tensor]:
    return {
        name: outputs[name].float() if outputs[name].is_floating_point() else outputs[name]
        for name in names
    }


def graphs_of(engine: TorchEngine, kind: ModelKind, guard: RecordingGuard) -> GraphCache | None:
    """Returns the recorded passes of a loaded model. None if they cannot be recorded: the device is
    no GPU, or the model decides between the steps of a pass.

    A failed recording leaves torch's random numbers unusable, so other kinds are not even tried.
    """
    is_able = kind is ModelKind.PASSES and engine.stages.steps is None
    if engine.recorder is None or not is_able:
        return None
    tolerance = TOLERANCE if engine.dtype == torch.float32 else HALF_TOLERANCE
    return GraphCache(
        engine.run,
        PaddedBuckets(engine.stages),
        engine.recorder,
        tolerance=tolerance,
        guard=guard,
    )
