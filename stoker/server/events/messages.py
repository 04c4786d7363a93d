"""Messages for listeners, and the rules for which listener may receive them."""

import asyncio
from collections import deque
from dataclasses import dataclass

import orjson

from stoker.wire import sse

MOST_WAITING = 512
MOST_BYTES = 8 << 20
"""Maximum number of messages, and of their bytes, that wait for one slow listener."""
RESET = b"event: reset\ndata: {}\n\n"
"""Sent after messages were lost. The client then requests all lists again."""


@dataclass(frozen=True)
class EventMessage:
    content: bytes
    account_id: str
    deployment_id: str | None = None
    """Deployment whose keys may receive the message. None if no such key may."""


def told(name: str, body: object) -> bytes:
    return sse.framed(orjson.dumps(body), name)


@dataclass(frozen=True)
class Visibility:
    """Accounts and deployments that a listener may receive messages about."""

    accounts: frozenset[str] | None
    """Visible accounts. None means all."""
    deployment_ids: frozenset[str] | None = None
    """For a key for some deployments: their ids. The key sees only objects that they made. None
    means everything of its accounts.
    """

    def includes(self, message: EventMessage) -> bool:
        if not self.has(message.account_id):
            return False
        return self.deployment_ids is None or message.deployment_id in self.deployment_ids

    def has(self, account_id: str) -> bool:
        return self.accounts is None or account_id in self.accounts


class Subscriber:
    def __init__(self, reach: Visibility, account_id: str | None, key_id: str) -> None:
        self.reach = reach
        self.account_id = account_id
        """Account of the key. None for an operator's key."""
        self.key_id = key_id
        self.is_over = False
        """True if the stream must end."""
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
        """Returns all waiting messages in order and removes them. Empty if none wait."""
        content = b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        self._news.clear()
        return content

    async def wait(self, seconds: float) -> None:
        """Waits for new messages, at most `seconds` seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
