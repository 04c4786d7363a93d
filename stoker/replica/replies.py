"""The messages about its work that a replica sends to the gateway."""

from collections.abc import Sequence

from stoker.wire.protocol import (
    Adopted,
    Cancelled,
    ChosenPrecision,
    Parts,
    PrecisionChanged,
    Progress,
    RequestFailure,
    RequestResult,
    Send,
)
from stoker.wire.sleep import Moved


class Replies:
    """Writes the messages. Callable from any thread."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def parts(self, parts: Sequence[tuple[int, bytes]]) -> None:
        """Sends the next pieces of streams, each with its request's id, in one message."""
        if parts:
            ids, contents = zip(*parts, strict=True)
            sizes = [len(content) for content in contents]
            self._send(Parts(list(ids), sizes), b"".join(contents))

    def progress(self, request_id: int, fraction: float) -> None:
        """Reports the completed share of a request's work, 0 to 1."""
        self._send(Progress(request_id, fraction), None)

    def result(
        self, request_id: int, content: bytes, counts: dict[str, int], times: dict[str, int]
    ) -> None:
        """Sends the answer, or the rest of a streamed one."""
        self._send(RequestResult(request_id, counts, times), content)

    def failure(self, failure: RequestFailure) -> None:
        self._send(failure, None)

    def adopted(self, is_taken: bool) -> None:
        """Reports whether an offered converted model was adopted."""
        self._send(Adopted(is_taken), None)

    def moved(self, moved: Moved) -> None:
        """Reports the outcome of a move of GPU memory."""
        self._send(moved, None)

    def precision_changed(self, precision: ChosenPrecision) -> None:
        self._send(PrecisionChanged(precision), None)

    def cancelled(self, request_id: int, counts: dict[str, int]) -> None:
        """Reports a cancelled request with the counts of its completed work."""
        self._send(Cancelled(request_id, counts), None)
