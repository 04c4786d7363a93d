"""Limits of a connection: bytes, time, and its share of all connections."""

from dataclasses import dataclass

from stoker.base.config import Settings

KIB = 1024
HEAD_BYTES = 64 * KIB
"""Maximum size of a request's head and trailers, and of other data that belongs neither to a head
nor to a body.
"""
TARGET_BYTES = 32 * KIB
"""Maximum size of the path and query in the request line."""
HEADERS = 200
PIPELINED = 64
"""Maximum number of requests that wait for the response to the one before them."""
PROGRESS_BYTES = 16 * KIB
"""Minimum number of bytes that must arrive of a body, or be read of a response, within its time
limit.
"""
IDLE_S = 75.0
"""Idle timeout in seconds. It is longer than the idle timeout of clients, so that they close first:
a POST into a connection that the server is closing cannot be repeated safely.
"""

MOST_CONNECTIONS = 10_000
_SHARE_OF_FILES = 0.8


@dataclass(frozen=True, kw_only=True)
class EdgeLimits:
    connections: int
    per_address: int
    """Maximum number of connections per address. 0 means only the total limit applies."""
    head_s: float
    body_s: float
    answer_s: float

    @classmethod
    def of(cls, settings: Settings, files: int) -> "EdgeLimits":
        """Derives the limits from the settings. `files` is the maximum number of open files of the
        process.
        """
        most = int(files * _SHARE_OF_FILES)
        return cls(
            connections=min(settings.connections_limit or MOST_CONNECTIONS, max(1, most)),
            per_address=settings.connections_per_address,
            head_s=settings.head_timeout_s,
            body_s=settings.body_timeout_s,
            answer_s=settings.answer_timeout_s,
        )
