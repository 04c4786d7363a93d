"""What an engine does for a language model: load it, and hand over what continues sequences."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from stoker.models.llm.interface import LanguageModel
from stoker.wire.protocol import Execution, Sharing

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapters


class LanguageEngine(Protocol):
    """One language model, loaded by an engine of the catalogue."""

    @property
    def max_length(self) -> int:
        """As of `LanguageModel`."""
        ...

    @property
    def vocabulary(self) -> int:
        """As of `LanguageModel`."""
        ...

    @property
    def adapters(self) -> "Adapters | None":
        """Those that requests may name; None: it runs the model alone."""
        ...

    @property
    def sharing(self) -> Sharing | None:
        """What sequences may share, where that was looked for."""
        ...

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        """What continues sequences, until one of these tokens ends them. Called once."""
        ...

    @property
    def convertible(self) -> bool:
        """Whether a conversion of the loaded model may be tried."""
        ...

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Make the model ready as it was converted, beside the steps, on another thread.

        Returns what goes on with it, called on the engine's thread between two of them. Raises
        whatever the libraries raise.
        """
        ...
