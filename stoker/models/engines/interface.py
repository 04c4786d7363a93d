"""Interface of an engine: loads a model folder and runs forward passes over samples."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import Execution

Progress = Callable[[float, str], None]
"""Called while loading with a fraction from 0 to 1 and the name of the step."""


class Engine(Protocol):
    """Engine with a loaded model. Not thread-safe: one thread calls it."""

    name: str
    """Name of the engine that runs the model now. `adopt` may change it."""

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        """Loads the folder's model and returns it, for the stages to attach to.

        Passes on all errors of the libraries. The message is logged and shown to the owner.
        """
        ...

    def enter_thread(self) -> None:
        """Prepares the calling thread, which will call `forward`. Called once."""
        ...

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        """Runs one batch. Returns one output per sample, with its features and extras, on the CPU.

        An engine that runs many steps reports them to `watch`.
        """
        ...

    @property
    def convertible(self) -> bool:
        """True if a conversion of the loaded model may be tried."""
        ...

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Prepares the converted model on another thread, while passes run.

        Returns a function that switches to it. It is called on the engine's thread between two
        passes. Passes on all errors of the libraries.
        """
        ...


class RunningBatch(Protocol):
    """Batch that the device computes."""

    @property
    def is_ready(self) -> bool:
        """True if `outputs` returns without waiting."""
        ...

    def outputs(self) -> list[Mapping[str, Any]]:
        """Waits for the device. Returns the outputs in the format of `Engine.forward`. Raises the
        errors of the pass.
        """
        ...


class PassCache(Protocol):
    """Recorded passes of a model. See `stoker.models.engines.graphs`."""

    state: RecordedPasses

    def replay(self, call: Hashable, batch: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Returns the outputs of a batch, valid until the next call. None if the batch must run as
        usual.
        """
        ...

    @property
    def is_wanting(self) -> bool:
        """True if `record` would record a pass."""
        ...

    @property
    def pays(self) -> bool:
        """True if the time that `record` takes is worth a delay of requests."""
        ...

    def record(self) -> None:
        """Continues the recording of a pass for about the time of a pass.

        Raises `DeviceLostError` if the device can no longer compute.
        """
        ...

    def clear(self) -> None:
        """Drops all recorded passes."""
        ...


@runtime_checkable
class OverlappingEngine(Engine, Protocol):
    """Engine that can prepare a batch while its device computes another one."""

    @property
    def is_asynchronous(self) -> bool:
        """True if the device computes while the host continues."""
        ...

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        ...

    def stage(self, samples: Sequence[Sample]) -> Any:
        """Returns a batch for `launch`. Starts the copies of its inputs to the device."""
        ...

    def launch(self, staged: Any) -> RunningBatch:
        """Starts the pass of a staged batch. Each batch is launched after the previous batch has
        ended.
        """
        ...

    @property
    def recorded(self) -> RecordedPasses:
        """Recorded passes of the model. Callable from any thread."""
        ...

    @property
    def wants_idle_time(self) -> bool:
        """True if `use_idle_time` would make later passes faster."""
        ...

    @property
    def idle_work_pays(self) -> bool:
        """True if the time of `use_idle_time` is worth a delay of requests."""
        ...

    def use_idle_time(self) -> None:
        """Makes later passes faster. Takes the time of a few passes at most. Called while no batch
        computes.

        Raises `DeviceLostError` if the device can no longer compute.
        """
        ...

    def drop_recorded(self) -> None:
        """Drops the recorded passes, because a batch needs their memory."""
        ...


def overlaps(engine: Engine) -> TypeGuard[OverlappingEngine]:
    """Returns True if the engine's device computes while the host continues."""
    return isinstance(engine, OverlappingEngine) and engine.is_asynchronous
