"""Looks at a batch while it is computed in many steps, and may end it."""

from collections.abc import Mapping
from typing import Any


class AbandonedError(Exception):
    """Nobody waits any more for what is being computed."""


class Watch:
    """Looks at a batch while it is computed in many steps. This one does not care."""

    def step(self, fraction: float) -> None:
        """So much of the batch is done, 0 to 1. Raises `AbandonedError`, which ends the batch."""

    def part(self, row: int, output: Mapping[str, Any]) -> None:
        """What there is of a sample, of which more is to come; for answers that are streamed."""


UNWATCHED = Watch()
