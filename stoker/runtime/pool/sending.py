"""Context of a call that a replica works on."""

from collections.abc import Callable

from stoker.runtime.pool.answers import ReplicaAnswer


class Sending:
    """Sends a call at its beginning and finishes it at its end. A class, because a generator would
    cost every call more.
    """

    def __init__(
        self, begin: Callable[[], tuple[int, ReplicaAnswer]], finish: Callable[[int], None]
    ) -> None:
        self._begin = begin
        self._finish = finish
        self._id = 0

    def __enter__(self) -> ReplicaAnswer:
        self._id, answer = self._begin()
        return answer

    def __exit__(self, *_raised: object) -> None:
        self._finish(self._id)
