"""The accepted requests of a replica that have no answer yet."""

from typing import Generic, Protocol, TypeVar


class Answerable(Protocol):
    """Protocol of a request that `OpenRequests` can hold."""

    done: bool
    """True if the request was answered or cancelled, so that no more work is due on it."""

    @property
    def id(self) -> int:
        """The gateway's number of the request."""
        ...


Request = TypeVar("Request", bound=Answerable)


class OpenRequests(Generic[Request]):
    """Accepted requests without an answer. The caller that closes a request sends its only answer.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, request_id: int) -> Request:
        return self._requests[request_id]

    def open(self, request: Request) -> None:
        self._requests[request.id] = request

    def close(self, request_id: int) -> Request | None:
        """Removes and returns a request to answer it. None if it was answered or cancelled
        before.
        """
        # `pop` is atomic: only one of two threads gets the request.
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.done = True
        return request
