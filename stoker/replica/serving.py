"""What a replica does with the requests that reach it, by the kind of its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stoker.models.engines.interface import Engine, Progress
from stoker.models.stages.base import Stages
from stoker.replica.counters import Counters
from stoker.replica.passes import Passes
from stoker.wire.flight import FlightRecord
from stoker.wire.notices import Notice
from stoker.wire.protocol import Execution, ReplicaSpec, Send, Sharing

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapters


class Serving(Protocol):
    """Works on requests in threads of its own; answers go out by the `Send` that it was given."""

    counters: Counters
    """What was done since the start."""
    sharing: Sharing | None
    """What may share a forward pass, where that was looked for."""
    notices: Sequence[Notice]
    """What the model's owner should know."""

    @property
    def accepted(self) -> int:
        """Requests that have no answer yet."""
        ...

    @property
    def engine(self) -> str:
        """What runs the model now."""
        ...

    @property
    def convertible(self) -> bool:
        """Whether a conversion of the model may be tried."""
        ...

    @property
    def cache_usage(self) -> float | None:
        """The share of the key-value cache that requests hold, of language models."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be measured in idle moments."""
        ...

    @property
    def alive(self) -> bool:
        """False once nothing can be computed any more: the process should end."""
        ...

    @property
    def children(self) -> Sequence[int]:
        """Processes below this one, whose memory is its own."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None:
        """Finish what was accepted, then end the threads."""
        ...

    def submit(self, message: Any) -> None: ...

    def cancel(self, request_id: int) -> None:
        """Drop a request and report what was done for it; one that has ended is no error."""
        ...

    def adopt(self, execution: Execution) -> None:
        """Go on with the converted model, between two passes."""
        ...

    def measured(self) -> tuple[str, int] | None:
        """An engine and its batch budget, when it was newly measured."""
        ...


def serving(
    spec: ReplicaSpec, send: Send, flight: FlightRecord, passes: Passes, progress: Progress
) -> Serving:
    """Load a model and return what serves it. Raises whatever the libraries raise."""
    from stoker.models.tasks.registry import GENERATING

    progress(0.0, "reading the tokenizer")
    if spec.pipeline in GENERATING:
        from stoker.replica.language_loading import load_language_model

        return load_language_model(spec, send, flight, passes, progress)
    return _stages(spec, send, flight, passes, progress)


def _stages(
    spec: ReplicaSpec, send: Send, flight: FlightRecord, passes: Passes, progress: Progress
) -> Serving:
    from stoker.models.engines.openmp import on_passing_thread
    from stoker.replica.calibration import Calibration
    from stoker.replica.worker import Worker

    engine, stages, adapters = on_passing_thread(lambda: _loaded(spec, progress))
    return Worker(
        engine,
        stages,
        send,
        flight,
        Calibration(spec.batch_budgets),
        passes=passes,
        adapters=adapters,
    )


def _loaded(spec: ReplicaSpec, progress: Progress) -> tuple[Engine, Stages, "Adapters | None"]:
    from stoker.models.adapters.applying import adapters_of
    from stoker.models.engines import catalogue, sharing
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
    if isinstance(engine, TorchEngine) and (model := engine.widened()):
        stages.attach(model)
    if spec.sharing:
        stages.sharing = spec.sharing
    elif isinstance(engine, TorchEngine):
        progress(0.9, "looking what may share a batch")
        engine.enter_thread()
        stages.sharing = sharing.find(engine, stages)
    adapters: Adapters | None = None
    if isinstance(engine, TorchEngine):
        adapters = engine.adapters = adapters_of(engine.model, spec.adapters, spec.adapter_bytes)
    return engine, stages, adapters
