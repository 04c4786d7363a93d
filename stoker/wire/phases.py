"""Where a request's time in a replica goes."""

import time


class Phases:
    """A request is in one phase at a time. Those of a list's items overlap: the engine's count."""

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
        """Phase → microseconds, in the order in which they were entered first."""
        self.enter("")
        return {name: spent // 1000 for name, spent in self._spent_ns.items()}
