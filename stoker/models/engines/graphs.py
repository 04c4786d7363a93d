"""Records the passes of a model over buckets of batches and replays them.

A recorded pass is a CUDA graph: the GPU launches its kernels without Python, which takes a tenth of
the time. The first batches of a bucket run as usual. Once a bucket is used often, its pass is
recorded in an idle moment, compared with a usual pass, and replayed from then on.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.models.engines.buckets import Batch, Buckets, PaddedBuckets, ShapeBucket
from stoker.models.engines.probing import difference
from stoker.models.engines.recorders import CudaRecorder, Recorder, Recording
from stoker.models.engines.sharing import HALF_TOLERANCE, TOLERANCE
from stoker.models.engines.torch import TorchEngine
from stoker.models.engines.transfers import Outputs
from stoker.models.stages.kinds import ModelKind
from stoker.wire.passes import RecordedPasses

log = logging.getLogger(__name__)

Run = Callable[[Hashable, Batch], Outputs]
"""Runs a pass as usual. See `TorchEngine.run`."""

LEAST_USES = 3
"""Number of batches of a bucket after which its pass is worth recording."""
MOST_GRAPHS = 64
"""Maximum number of recorded passes."""
MOST_EXAMPLES = 8
"""Maximum number of batches that are kept as examples to record passes with."""
MOST_BUCKETS = 512
"""Maximum number of buckets whose uses are counted."""
MOST_ELEMENTS = 1 << 25
"""Maximum number of elements of a recorded pass's inputs. Launches hardly matter in larger
passes.
"""


class UnfitPassError(Exception):
    """The model's passes cannot be replayed. The message says why."""


@dataclass(frozen=True)
class _Graph:
    inputs: dict[str, torch.Tensor]
    recording: Recording


@dataclass(eq=False)
class GraphCache:
    """Recorded passes of one model. One thread uses it."""

    run: Run
    buckets: Buckets
    recorder: Recorder
    most: int = MOST_GRAPHS
    tolerance: float = TOLERANCE
    _graphs: OrderedDict[ShapeBucket, _Graph] = field(
        default_factory=OrderedDict[ShapeBucket, _Graph]
    )
    """Recorded passes, least recently used first."""
    _uses: Counter[ShapeBucket] = field(default_factory=Counter[ShapeBucket])
    """Number of batches that ran as usual, by bucket."""
    _examples: dict[ShapeBucket, Batch] = field(default_factory=dict[ShapeBucket, Batch])
    """Latest batches of buckets that are worth recording."""
    _slower: set[ShapeBucket] = field(default_factory=set[ShapeBucket])
    """Buckets whose padded pass takes longer than a usual pass."""
    _refused: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    """Reasons by form of bucket."""
    _is_full: bool = False
    """True once the device lacked memory."""
    state: RecordedPasses = field(default_factory=lambda: RecordedPasses(0))

    def replay(self, call: Hashable, batch: Batch) -> Outputs | None:
        """Returns the outputs of a pass, valid until the next call. None if the batch must run as
        usual.
        """
        bucket = self.buckets.bucket(call, batch)
        graph = self._graphs.get(bucket)
        if graph is None:
            self._count(bucket, batch)
            return None
        self._graphs.move_to_end(bucket)
        return self._replayed(graph, batch)

    def _replayed(self, graph: _Graph, batch: Batch) -> Outputs:
        self.buckets.write(graph.inputs, batch)
        return self.buckets.cut(graph.recording.replay(), graph.inputs, batch)

    def _count(self, bucket: ShapeBucket, batch: Batch) -> None:
        is_refused = self._is_full or bucket.form in self._refused
        if is_refused or bucket in self._slower or bucket.elements > MOST_ELEMENTS:
            return
        if len(self._uses) == MOST_BUCKETS and bucket not in self._uses:
            self._uses = Counter(dict(self._uses.most_common(MOST_BUCKETS // 2)))
        self._uses[bucket] += 1
        if self._uses[bucket] >= LEAST_USES:
            self._examples[bucket] = batch
        if len(self._examples) > MOST_EXAMPLES:
            del self._examples[min(self._examples, key=self._uses.__getitem__)]

    @property
    def is_wanting(self) -> bool:
        """True if `record` would record a pass."""
        return bool(self._examples)

    @torch.inference_mode()
    def record(self) -> None:
        """Records the pass of the bucket that was used most. Takes the time of some passes."""
        bucket = max(self._examples, key=self._uses.__getitem__)
        batch = self._examples.pop(bucket)
        del self._uses[bucket]
        if self.recorder.has_room():
            self._record(bucket, batch)
        else:
            self._is_full = True
            self._examples.clear()
        self._publish()

    def _record(self, bucket: ShapeBucket, batch: Batch) -> None:
        while len(self._graphs) >= self.most:
            self._graphs.popitem(last=False)
        try:
            graph = self._recorded(bucket, batch)
        except Exception as error:
            log.warning("passes are not recorded", exc_info=error)
            # Errors of CUDA have several lines of advice.
            reason, *_ = str(error).splitlines() or [type(error).__name__]
            self._refuse(bucket.form, f"The model's passes cannot be recorded: {reason}")
            return
        shapes = [tuple(shape) for _, shape, _ in bucket.shapes]
        if graph is None:
            log.info("a recorded pass of the shapes %s is slower", shapes)
            self._slower.add(bucket)
        else:
            log.info("recorded a pass of the shapes %s", shapes)
            self._graphs[bucket] = graph

    def _recorded(self, bucket: ShapeBucket, batch: Batch) -> _Graph | None:
        """Returns the recorded pass of a bucket, or None if it is slower than the example's usual
        pass.

        Raises the errors of the recorder, and `UnfitPassError`.
        """
        inputs = self.buckets.inputs(bucket, batch)
        recording = self.recorder.record(lambda: self.run(bucket.call, inputs))
        graph = _Graph(inputs, recording)
        trial = _trial(batch)
        ours, theirs = self._replayed(graph, trial), self.run(bucket.call, trial)
        if not _difference(ours, theirs) <= self.tolerance:
            raise UnfitPassError("a replayed pass has other outputs than a usual one")
        replay_s = self.recorder.seconds(lambda: self._replayed(graph, batch))
        usual_s = self.recorder.seconds(lambda: self.run(bucket.call, batch))
        return graph if replay_s <= usual_s else None

    def _refuse(self, form: Hashable, reason: str) -> None:
        self._refused[form] = reason
        for bucket in [bucket for bucket in self._examples if bucket.form == form]:
            del self._examples[bucket]
        for bucket in [bucket for bucket in self._graphs if bucket.form == form]:
            del self._graphs[bucket]

    def clear(self) -> None:
        """Drops all recorded passes, so that their memory is free."""
        self._graphs.clear()
        self._uses.clear()
        self._examples.clear()
        self._publish()

    def _publish(self) -> None:
        full = "The device has too little free memory." if self._is_full else ""
        problem = next(iter(self._refused.values()), full)
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


def graphs_of(engine: TorchEngine, kind: ModelKind) -> GraphCache | None:
    """Returns the recorded passes of a loaded model. None if they cannot be recorded: the device is
    no GPU, or the model decides between the steps of a pass.

    A failed recording leaves torch's random numbers unusable, so other kinds are not even tried.
    """
    is_able = kind is ModelKind.PASSES and engine.stages.steps is None
    if engine.device.type != "cuda" or not is_able:
        return None
    tolerance = TOLERANCE if engine.dtype == torch.float32 else HALF_TOLERANCE
    buckets = PaddedBuckets(engine.stages)
    return GraphCache(engine.run, buckets, CudaRecorder(engine.device), tolerance=tolerance)
