"""The requests that a replica has accepted and not answered yet."""

from typing import Generic, Protocol, TypeVar


class Answerable(Protocol):
    """What a request must have to be kept here."""

    done: bool
    """Whether it was answered or cancelled: no more work is due on it."""

    @property
    def id(self) -> int:
        """The gateway's number of it."""
        ...


Request = TypeVar("Request", bound=Answerable)


class OpenRequests(Generic[Request]):
    """Each gets one answer: whoever closes it sends that. Thread-safe."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, request_id: int) -> Request:
        return self._requests[request_id]

    def open(self, request: Request) -> None:
        self._requests[request.id] = request

    def close(self, request_id: int) -> Request | None:
        """Take a request out to answer it; None where it was answered or cancelled before."""
        # One of two threads gets it: `pop` is atomic.
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.done = True
        return request
