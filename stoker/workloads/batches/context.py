import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any
from weakref import WeakValueDictionary

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part
from stoker.store import db


class LinePlaces:
    """Limits the lines of each deployment that this server computes at the same time."""

    def __init__(self) -> None:
        self._places: WeakValueDictionary[tuple[str, int], asyncio.Semaphore] = (
            WeakValueDictionary()
        )

    def of(self, deployment_id: str, most: int) -> asyncio.Semaphore:
        """Returns the places of a deployment, which its batches share."""
        key = (deployment_id, most)
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = asyncio.Semaphore(most)
        return places


@dataclass(frozen=True, kw_only=True)
class BatchContext(Platform):
    calls: Calls
    jobs: JobRunner[Any, Any]
    places: LinePlaces = field(default_factory=LinePlaces)
    clock: Callable[[], datetime] = db.now


ContextDep = Annotated[BatchContext, part(BatchContext)]
