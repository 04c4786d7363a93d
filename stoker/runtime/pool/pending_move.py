"""Move of a replica's GPU memory that the replica has not answered yet."""

import asyncio

from stoker.wire.sleep import Moved


class PendingMove:
    """At most one move is pending at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[Moved] | None = None

    def begin(self) -> None:
        self._answer = asyncio.get_running_loop().create_future()

    async def wait(self, timeout_s: float) -> Moved:
        """Returns the outcome. It is an error if the replica does not answer in time or ends."""
        if self._answer is None:
            return Moved("no move was requested")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer
        except TimeoutError:
            return Moved(f"the replica did not answer within {timeout_s:g} s")

    def end(self, moved: Moved) -> None:
        """Ends the pending move. An unexpected answer is ignored."""
        if self._answer and not self._answer.done():
            self._answer.set_result(moved)
