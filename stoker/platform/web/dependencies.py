"""Dependencies of request handlers that are classes."""

import inspect
from collections.abc import Callable
from typing import Any

from fastapi import Depends


def made(kind: Callable[..., Any]) -> Any:
    """A dependency that is made on the event loop, with what the class's signature asks for.

    Given the class itself, FastAPI would make it in a thread pool, which costs more than most
    handlers' own work.
    """

    async def make(**given: Any) -> Any:
        return kind(**given)

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return Depends(make)
