"""Interface of an engine for a language model: it loads the model and returns a `LanguageModel`."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stoker.models.engines.recording_guard import RecordingGuard
from stoker.models.llm.interface import LanguageModel
from stoker.wire.protocol import Execution, Sharing

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapters


class LanguageEngine(Protocol):
    """Language model that is loaded by an engine of the catalogue."""

    @property
    def max_length(self) -> int:
        """See `LanguageModel.max_length`."""
        ...

    @property
    def vocabulary(self) -> int:
        """See `LanguageModel.vocabulary`."""
        ...

    @property
    def adapters(self) -> "Adapters | None":
        """Adapters that requests may name. None if the engine runs the model alone."""
        ...

    @property
    def sharing(self) -> Sharing | None:
        """How sequences may be computed together. None if the engine does not test that."""
        ...

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        """Returns the model that continues sequences until one of the tokens `ends` ends them.
        Called once.
        """
        ...

    @property
    def convertible(self) -> bool:
        """True if a conversion of the loaded model may be tried."""
        ...

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Prepares the converted model on another thread, in parallel with the steps.

        Returns a function that switches to the converted model. It is called on the engine's thread
        between two steps. Raises any error of the libraries.
        """
        ...


@runtime_checkable
class Guarded(Protocol):
    """Engine that captures steps."""

    def guard(self, guard: RecordingGuard) -> None:
        """Notes each capture while it runs, from now on. Skips captures that ended earlier
        replicas.
        """
        ...
