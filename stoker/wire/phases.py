"""Time of a request in a replica, by phase."""

import time


class Phases:
    """Timer of a request's phases. A request is in one phase at a time.

    The items of a list overlap. Their phases are those of the engine.
    """

    __slots__ = ("_name", "_since", "_spent_ns")

    def __init__(self, name: str) -> None:
        self._name = name
        self._since = time.perf_counter_ns()
        self._spent_ns: dict[str, int] = {}

    def enter(self, name: str) -> None:
        now = time.perf_counter_ns()
        self._spent_ns[self._name] = self._spent_ns.get(self._name, 0) + now - self._since
        self._name, self._since = name, now

    def end(self) -> dict[str, int]:
        """Ends the current phase. Returns microseconds by phase, in the order in which the phases
        were first entered.
        """
        self.enter("")
        return {name: spent // 1000 for name, spent in self._spent_ns.items()}
