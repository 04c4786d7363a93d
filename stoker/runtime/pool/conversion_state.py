"""Execution on OpenVINO that a replica uses, or that it was offered."""

from collections.abc import Callable

from stoker.wire.protocol import Execution

PROVED_S, PROVED_ANSWERS = 60.0, 16
"""Seconds or answers after which a replica's end is not attributed to its start."""


class ConversionState:
    """State of a switch to a converted model, which is offered to a replica at most once."""

    def __init__(self, clock: Callable[[], float], answered: Callable[[], int]) -> None:
        """
        Args:
            answered: returns the number of answers of the replica.
        """
        self._clock = clock
        self._answered = answered
        self._is_possible = False
        self._execution: Execution | None = None
        self._is_adopting = False
        """True while the replica has not reported the outcome of the adoption."""
        self._since = 0.0
        self._answered_before = 0
        """Number of answers before the replica started to use the execution."""

    @property
    def is_possible(self) -> bool:
        """True if the replica can switch to a converted model."""
        return self._is_possible

    @property
    def execution(self) -> Execution | None:
        """Execution that the replica uses or is about to use. None for other engines."""
        return self._execution

    @property
    def has_proved_itself(self) -> bool:
        """True if the replica has used its execution so long that a problem now has another
        cause.
        """
        answers = self._answered() - self._answered_before
        return is_proved(self._clock() - self._since, answers) and not self._is_adopting

    def loaded(self, *, is_possible: bool) -> None:
        """Records if the loaded model can be replaced by a converted one."""
        self._is_possible = is_possible

    def forbid(self) -> None:
        """Records that no execution will be offered to the replica any more."""
        self._is_possible = False

    def offered(self, execution: Execution) -> None:
        """Records that the replica was requested to switch to the converted model."""
        self.forbid()
        self._execution, self._is_adopting = execution, True

    def begin_with(self, execution: Execution) -> None:
        """Records that the replica uses this execution from now on."""
        self._execution, self._is_adopting = execution, False
        self._since, self._answered_before = self._clock(), self._answered()

    def adopted(self, *, is_taken: bool) -> None:
        """Records the outcome of an offer."""
        if is_taken and self._execution:
            self.begin_with(self._execution)
        else:
            self._execution, self._is_adopting = None, False


def is_proved(seconds: float, answers: int) -> bool:
    return answers >= PROVED_ANSWERS or (answers > 0 and seconds >= PROVED_S)
