"""What listeners are told, and which of them may be."""

import asyncio
from collections import deque
from dataclasses import dataclass

import orjson

from stoker.wire import sse

MOST_WAITING = 512
MOST_BYTES = 8 << 20
"""Messages, and bytes of them, that wait for one listener who is slow."""
RESET = b"event: reset\ndata: {}\n\n"
"""Some were lost: whoever hears this asks for all lists anew."""


@dataclass(frozen=True)
class Message:
    content: bytes
    account_id: str
    video_of: str | None = None
    """Of a video: the deployment that made it, whose keys may see it."""


def told(name: str, body: object) -> bytes:
    return sse.framed(orjson.dumps(body), name)


@dataclass(frozen=True)
class Visibility:
    """What one who listens may hear."""

    accounts: frozenset[str] | None
    """None: of all."""
    deployment_ids: frozenset[str] | None = None
    """Of a key for some deployments, which sees what these have made; None: all of its accounts."""

    def includes(self, message: Message) -> bool:
        if not self.has(message.account_id):
            return False
        return self.deployment_ids is None or message.video_of in self.deployment_ids

    def has(self, account_id: str) -> bool:
        return self.accounts is None or account_id in self.accounts


class Listener:
    def __init__(self, reach: Visibility, account_id: str | None, key_id: str) -> None:
        self.reach = reach
        self.account_id = account_id
        """The key's account; None for an operator's key."""
        self.key_id = key_id
        self.is_over = False
        """The server stops."""
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()

    def tell(self, content: bytes) -> None:
        if len(self._waiting) >= MOST_WAITING or self._bytes + len(content) > MOST_BYTES:
            self._waiting.clear()
            self._waiting.append(RESET)
            self._bytes = 0
        else:
            self._waiting.append(content)
            self._bytes += len(content)
        self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    def take(self) -> bytes:
        """All that waits, in order; nothing, where nothing does."""
        found = b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        self._news.clear()
        return found

    async def wait(self, seconds: float) -> None:
        """Until there is news, or so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
