"""What a connection may take: of bytes, of time, and of places among the others."""

from dataclasses import dataclass

from stoker.base.config import Settings

KIB = 1024
HEAD_BYTES = 64 * KIB
"""Of a request's head and trailers, and of whatever brings neither a head nor a body further."""
TARGET_BYTES = 32 * KIB
"""Of the path and query in the request line."""
HEADERS = 200
PIPELINED = 64
"""Requests that wait for the answer to the one before them."""
PROGRESS_BYTES = 16 * KIB
"""What has to come of a body, or be read of an answer, within its time limit."""
IDLE_S = 75.0
"""Longer than clients keep idle connections, so that they close first: a POST sent into one that
the server is closing cannot be repeated safely."""

MOST_CONNECTIONS = 10_000
_SHARE_OF_FILES = 0.8


@dataclass(frozen=True, kw_only=True)
class EdgeLimits:
    connections: int
    per_address: int
    """0: as many as there may be in all."""
    head_s: float
    body_s: float
    answer_s: float

    @classmethod
    def of(cls, settings: Settings, files: int) -> "EdgeLimits":
        """`files`: how many the process may have open."""
        most = int(files * _SHARE_OF_FILES)
        return cls(
            connections=min(settings.connections_limit or MOST_CONNECTIONS, max(1, most)),
            per_address=settings.connections_per_address,
            head_s=settings.head_timeout_s,
            body_s=settings.body_timeout_s,
            answer_s=settings.answer_timeout_s,
        )
