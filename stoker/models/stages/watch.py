"""Observes a batch that is computed in many steps, and may end it."""

from collections.abc import Mapping
from typing import Any


class AbandonedError(Exception):
    """Raised to end a batch that no caller waits for."""


class Watch:
    """Observer of a batch that is computed in many steps. This base class does nothing."""

    def step(self, fraction: float) -> None:
        """Reports the finished fraction of the batch, 0 to 1. Raises `AbandonedError` to end the
        batch.
        """

    def part(self, row: int, output: Mapping[str, Any]) -> None:
        """Reports the output so far of an unfinished sample, for streamed answers."""


UNWATCHED = Watch()
