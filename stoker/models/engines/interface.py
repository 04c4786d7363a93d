"""What an engine does: load a model folder, run forward passes over samples."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.protocol import Execution

Progress = Callable[[float, str], None]
"""Called while loading with a fraction from 0 to 1 and the name of the step."""


class Engine(Protocol):
    """One model, loaded. Not thread-safe: one thread calls it."""

    name: str
    """What runs the model now; `adopt` may change it."""

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        """Load the folder's model and return it, for the stages to attach to.

        Raises whatever the libraries raise; the message is logged and named to the owner.
        """
        ...

    def enter_thread(self) -> None:
        """Called once on the thread that will call `forward`."""
        ...

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        """Run one batch; one output a sample, with its features and extras, on the CPU.

        An engine that takes many steps tells `watch` about them.
        """
        ...

    @property
    def convertible(self) -> bool:
        """Whether a conversion of the loaded model may be tried."""
        ...

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Make the model ready as it was converted, beside the passes, on another thread.

        Returns what goes on with it, called on the engine's thread between two of them. Raises
        whatever the libraries raise.
        """
        ...
