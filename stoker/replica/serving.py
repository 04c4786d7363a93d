"""A replica's work on its requests, by the kind of its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stoker.models.engines.interface import Engine, Progress
from stoker.models.stages.base import Stages
from stoker.replica.counters import Counters
from stoker.replica.passes import Passes
from stoker.wire.flight import FlightRecord
from stoker.wire.notices import Notice
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import ChosenPrecision, Execution, ReplicaSpec, Send, Sharing
from stoker.wire.sleep import Sleep, Wake

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapters
    from stoker.models.engines.recording_guard import RecordingGuard
    from stoker.replica.preparation.parent import PreparationParent


class Serving(Protocol):
    """Works on requests in separate threads. Sends answers by the `Send` that it received."""

    counters: Counters
    """Counts of the work since the start."""
    sharing: Sharing | None
    """Samples that may share a forward pass. None if this was not examined."""
    notices: Sequence[Notice]
    """Notices for the model's owner."""
    device: str
    """Device of the loaded weights, as torch names it. Empty if unknown."""

    @property
    def precision(self) -> ChosenPrecision | None:
        """Precision of an `auto` dtype. None if none was chosen."""
        ...

    @property
    def accepted(self) -> int:
        """Number of requests that have no answer yet."""
        ...

    @property
    def engine(self) -> str:
        """Name of the engine that runs the model now."""
        ...

    @property
    def convertible(self) -> bool:
        """True if a conversion of the model may be tried."""
        ...

    @property
    def cache_usage(self) -> float | None:
        """Share of a language model's KV cache that requests hold."""
        ...

    @property
    def recorded(self) -> RecordedPasses:
        """Recorded passes of the model."""
        ...

    @property
    def is_settled(self) -> bool:
        """True if no measurement remains for idle moments."""
        ...

    @property
    def alive(self) -> bool:
        """False once the model cannot compute any more. The process should end then."""
        ...

    @property
    def is_lost(self) -> bool:
        """True if accepted requests cannot be answered any more. The process should end then."""
        ...

    @property
    def children(self) -> Sequence[int]:
        """Child processes. Their memory counts as this process's memory."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None:
        """Finishes accepted requests, then ends the threads."""
        ...

    def submit(self, message: Any) -> None: ...

    def cancel(self, request_id: int) -> None:
        """Drops a request and reports its completed work. An ended request is no error."""
        ...

    def adopt(self, execution: Execution) -> None:
        """Continues with the converted model, between two passes."""
        ...

    def measured(self) -> tuple[str, int] | None:
        """Returns an engine and its batch budget if they were newly measured."""
        ...


@runtime_checkable
class SleepingServing(Protocol):
    """`Serving` of a model that may move its GPU memory to main memory by itself."""

    @property
    def sleep_bytes(self) -> int | None:
        """Bytes of main memory that the model needs while it sleeps. None if it cannot sleep."""
        ...

    def move(self, message: Sleep | Wake) -> None:
        """Moves the memory and reports the outcome. No request may be accepted meanwhile."""
        ...


def serving(
    spec: ReplicaSpec,
    send: Send,
    flight: FlightRecord,
    passes: Passes,
    progress: Progress,
    *,
    preparation: "PreparationParent | None" = None,
) -> Serving:
    """Loads a model and returns its `Serving`. Passes on all errors of the libraries.

    Args:
        preparation: parent of processes that prepare inputs. None: the replica prepares them.
    """
    from stoker.models.engines.precision import set_up_gpu
    from stoker.models.stages.kinds import ModelKind
    from stoker.models.tasks.registry import GENERATING, SERVED

    set_up_gpu(spec.dtype, shapes_vary=SERVED[spec.pipeline].kind is not ModelKind.DRAWING)
    progress(0.0, "reading the tokenizer")
    if spec.pipeline in GENERATING:
        from stoker.replica.language_loading import load_language_model

        return load_language_model(spec, send, flight, passes, progress)
    return _stages(spec, send, flight, passes, progress, preparation=preparation)


def _stages(
    spec: ReplicaSpec,
    send: Send,
    flight: FlightRecord,
    passes: Passes,
    progress: Progress,
    *,
    preparation: "PreparationParent | None",
) -> Serving:
    from stoker.models.engines.openmp import on_passing_thread
    from stoker.models.engines.recording_guard import RecordingGuard
    from stoker.replica.calibration import Calibration
    from stoker.replica.worker import TaskWorker

    guard = RecordingGuard(flight.note_recording, spec.lost_recordings)
    engine, stages, adapters = on_passing_thread(lambda: _loaded(spec, guard, progress))
    worker = TaskWorker(
        engine,
        stages,
        send,
        flight,
        Calibration(spec.batch_budgets),
        passes=passes,
        adapters=adapters,
        preparation=preparation,
    )
    worker.device = _device_of(engine)
    return worker


def _device_of(engine: Engine) -> str:
    """Returns the device of an engine's loaded weights. Engines of other packages may not say."""
    for model in (getattr(engine, "model", None), getattr(engine, "pipe", None), engine):
        if (device := getattr(model, "device", None)) is not None:
            return str(device)
    return ""


def _loaded(
    spec: ReplicaSpec, guard: "RecordingGuard", progress: Progress
) -> tuple[Engine, Stages, "Adapters | None"]:
    from stoker.models.adapters.applying import adapters_of
    from stoker.models.engines import catalogue, graphs, half_precision, sharing
    from stoker.models.engines.openmp import enter_to_probe
    from stoker.models.engines.torch import TorchEngine
    from stoker.models.stages import known_tokens
    from stoker.models.tasks.registry import SERVED, STAGES

    folder = Path(spec.model_dir)
    stages = STAGES[spec.pipeline](folder)
    stages.limits = spec.limits
    kind = stages.kind or SERVED[spec.pipeline].kind
    record = catalogue.chosen(spec.engine, spec.pipeline, kind)
    engine: Engine = catalogue.loaded(record.for_stages)(spec)
    model = engine.load(folder, stages, progress)
    stages.attach(model)
    known_tokens.learn(stages, model)
    if isinstance(engine, TorchEngine):
        engine.widen()
        half_precision.choose(engine, progress)
    if spec.sharing:
        stages.sharing = sharing.restored(engine, spec.sharing)
    elif isinstance(engine, TorchEngine):
        progress(0.9, "checking which inputs can share a batch")
        enter_to_probe(engine.model, engine.enter_thread)
        stages.sharing = sharing.find(engine, stages)
    adapters: Adapters | None = None
    if isinstance(engine, TorchEngine):
        adapters = engine.adapters = adapters_of(engine.model, spec.adapters, spec.adapter_bytes)
        engine.graphs = graphs.graphs_of(engine, kind, guard)
    return engine, stages, adapters
