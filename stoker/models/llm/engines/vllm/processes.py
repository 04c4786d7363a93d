"""Processes that vLLM starts: one for each GPU if there are several."""

from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> Iterator[int]:
    """Yields the children of a process, their children, and so on."""
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in listing.read_text().split()]
        except OSError:
            # The thread has ended.
            continue
        for child in children:
            yield child
            yield from descendants(child)
