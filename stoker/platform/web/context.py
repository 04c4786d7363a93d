"""What a request handler can ask for: the platform, a unit of work, a part of a resource."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Request

from stoker.base.config import Settings
from stoker.inspection import Inspectors
from stoker.media.collect import Collector
from stoker.platform.quotas.service import Quotas
from stoker.runtime.interface import Runtime
from stoker.store.blobs import Blobs
from stoker.store.db import Database, Session
from stoker.store.secret import ServerSecret

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What every resource stands on. It knows none of them; a resource that keeps something in
    memory has a context of its own, which is the platform and that.
    """

    settings: Settings
    quotas: Quotas
    database: Database
    blobs: Blobs
    secret: ServerSecret
    media: Collector
    inspectors: Inspectors
    runtime: Runtime


def install(app: FastAPI, parts: Iterable[object]) -> None:
    """Let handlers of the app find the parts, each by its type."""
    app.state.parts = {type(part): part for part in parts}


def part_of(request: Request, kind: type[T]) -> T:
    """What the app has of a type."""
    return request.app.state.parts[kind]


def part(kind: type[Any]) -> Any:
    """A dependency: what the app has of a type."""

    # A coroutine, though it awaits nothing: FastAPI sends plain functions to a thread pool.
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


# scope="function": committed before the answer is sent, so that nothing acknowledged is lost.
WriteSession = Annotated[Session, Depends(_transaction, scope="function")]
ReadSession = Annotated[Session, Depends(_reading, scope="function")]
