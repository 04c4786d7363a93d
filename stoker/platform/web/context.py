"""Dependencies of request handlers: the platform, a database session, and a resource's own
parts.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from stoker.base.config import Settings
from stoker.inspection import Inspectors
from stoker.media.collect import Collector
from stoker.platform.parts import ServerParts
from stoker.platform.quotas.service import QuotaService
from stoker.runtime.interface import Runtime
from stoker.store.blobs import Blobs
from stoker.store.db import Database, Session
from stoker.store.secret import ServerSecret

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """Services that every resource uses. The platform knows no resource. A resource with in-memory
    state extends the platform with its own context.
    """

    settings: Settings
    quotas: QuotaService
    database: Database
    blobs: Blobs
    secret: ServerSecret
    media: Collector
    inspectors: Inspectors
    runtime: Runtime


def part_of(request: Request, kind: type[T]) -> T:
    """Returns the app's part of a type."""
    parts: ServerParts = request.app.state.parts
    return parts.get(kind)


def part(kind: type[Any]) -> Any:
    """Returns a FastAPI dependency on the app's part of a type."""

    # A coroutine although it awaits nothing: FastAPI runs plain functions in a thread pool.
    async def found(request: Request) -> Any:
        return part_of(request, kind)

    return Depends(found)


PlatformDep = Annotated[Platform, part(Platform)]


async def _transaction(platform: PlatformDep) -> AsyncIterator[Session]:
    async with platform.database.transaction() as session:
        yield session


async def _reading(platform: PlatformDep) -> AsyncIterator[Session]:
    async with platform.database.reading() as session:
        yield session


# scope="function": commits before the response is sent, so that no acknowledged change is lost.
WriteSession = Annotated[Session, Depends(_transaction, scope="function")]
ReadSession = Annotated[Session, Depends(_reading, scope="function")]
