"""Class-based dependencies of request handlers."""

import inspect
from collections.abc import Callable
from typing import Any

from fastapi import Depends


def made(kind: Callable[..., Any]) -> Any:
    """Returns a dependency that creates the class on the event loop, with the arguments in its
    signature.

    If FastAPI received the class itself, it would create it in a thread pool. That costs more than
    most handlers' own work.
    """

    async def make(**given: Any) -> Any:
        return kind(**given)

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return Depends(make)
