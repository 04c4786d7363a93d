"""What a replica sends to the gateway of its work."""

from collections.abc import Sequence

from stoker.wire.protocol import Adopted, Cancelled, Failure, Parts, Progress, Result, Send


class Replies:
    """Writes the messages, from any thread."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def parts(self, parts: Sequence[tuple[int, bytes]]) -> None:
        """The next pieces of streams, each with its request's id, in one message."""
        if parts:
            ids, contents = zip(*parts, strict=True)
            sizes = [len(content) for content in contents]
            self._send(Parts(list(ids), sizes), b"".join(contents))

    def progress(self, request_id: int, fraction: float) -> None:
        """So much of a request's work is done, 0 to 1."""
        self._send(Progress(request_id, fraction), None)

    def result(
        self, request_id: int, content: bytes, counts: dict[str, int], times: dict[str, int]
    ) -> None:
        """The answer, or the rest of one that was streamed."""
        self._send(Result(request_id, counts, times), content)

    def failure(self, failure: Failure) -> None:
        self._send(failure, None)

    def adopted(self, is_taken: bool) -> None:
        """What came of a converted model that was offered."""
        self._send(Adopted(is_taken), None)

    def cancelled(self, request_id: int, counts: dict[str, int]) -> None:
        """A request was cancelled, for which so much was done."""
        self._send(Cancelled(request_id, counts), None)
