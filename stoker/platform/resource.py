"""A resource as a record: everything that one folder contributes to a server."""

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel

from stoker.platform.jobs.kind import JobKind
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import Builder, ServerParts
from stoker.runtime.listening import RuntimeListener
from stoker.store.db import Session
from stoker.store.tables.jobs import Job

Step = Callable[[ServerParts], Coroutine[Any, Any, None]]
TimedStep = Callable[[ServerParts, datetime], Coroutine[Any, Any, None]]
"""Step of the janitor. Its second argument is the current time."""
Source = Callable[[], Awaitable[Iterable[Metric]]]
"""Function that returns metrics. It is called on the event loop for each scrape."""


async def _nothing(_parts: ServerParts) -> None:
    return None


async def _nothing_due(_parts: ServerParts, _now: datetime) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class JobQueue:
    """Jobs of a resource. They are released before the replicas end."""

    task: str
    """Name of the background task that runs the jobs."""
    kind: str
    """Label of the jobs in the metric `stoker_jobs`."""
    table: type[Job]
    runner: Callable[[ServerParts], JobRunner[Any, Any]]
    work: Callable[[ServerParts], JobKind[Any, Any]]

    async def run(self, parts: ServerParts) -> None:
        """Works on the jobs until it is cancelled."""
        await self.runner(parts).run(self.work(parts))


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """Maintenance of a resource by the janitor."""

    each_server: TimedStep = _nothing_due
    """Runs in each round on every server."""
    shared: TimedStep = _nothing_due
    """Runs in each round on one of the servers that share a database."""
    strays: TimedStep = _nothing_due
    """Runs every hour on one server. Lists the object store, and is retried earlier if that does
    not answer.
    """
    shared_hourly: TimedStep = _nothing_due
    """Runs every hour on one server, after `strays`."""


@dataclass(frozen=True)
class Related:
    """Rows of another table that appear in an object."""

    column: str
    """Column with the object's id, or with the id that `resolve` accepts."""
    resolve: Callable[[Session, Collection[str]], Awaitable[Sequence[str]]] | None = None
    """Returns the ids of the objects in which the rows with these ids appear."""


@dataclass(frozen=True, kw_only=True)
class EventObjects:
    """Objects of a resource that event streams show."""

    kind: str
    """Name of the event that shows an object."""
    table: type[Any]
    read: Callable[
        [ServerParts, Session, Collection[str]], Awaitable[Sequence[tuple[Any, BaseModel]]]
    ]
    """Returns the existing rows with these ids, each with its representation."""
    related: Mapping[type[Any], Related] = field(default_factory=dict[type[Any], Related])
    progress: Callable[[ServerParts], Mapping[str, float]] | None = None
    """Returns the progress of running objects from 0 to 1. No row shows it."""
    is_for_deployment_keys: bool = False
    """True if keys of the row's deployment may see the object."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """All that a resource contributes to a server. `stoker/server/resources.py` lists the records.

    Functions receive the server's parts. Steps of one field run in the order of the list unless the
    field says otherwise.
    """

    name: str
    parts: Sequence[Builder] = ()
    """Builders of the parts that handlers and other resources request."""
    routers: Sequence[APIRouter] = ()
    """Routers whose routes require a key."""
    open_routers: Sequence[APIRouter] = ()
    """Routers that check their callers themselves, such as by a signed link."""
    prepare: Step = _nothing
    """Runs at the start, after migrations and before the runtime starts."""
    restore: Step = _nothing
    """Runs at the start, after the runtime has started and before requests are served."""
    tasks: Mapping[str, Step] = field(default_factory=dict[str, Step])
    """Background tasks by name. They stop after the replicas have ended."""
    peer_tasks: Mapping[str, Step] = field(default_factory=dict[str, Step])
    """Background tasks that run only if other servers may share the database."""
    jobs: JobQueue | None = None
    listeners: Callable[[ServerParts], Sequence[RuntimeListener]] = lambda _parts: ()
    metrics: Callable[[ServerParts], Sequence[Source]] = lambda _parts: ()
    upkeep: Upkeep = field(default_factory=Upkeep)
    catch_up: Step = _nothing
    """Applies changes by other servers. Runs every second if servers may share the database."""
    peer_lost: Step = _nothing
    """Takes over the work of a lost server."""
    events: EventObjects | None = None
    end_streams: Callable[[ServerParts], None] = lambda _parts: None
    """Ends all streams because the server stops. Streams may last for days, so the server does not
    wait for them.
    """
    closing: Mapping[str, Step] = field(default_factory=dict[str, Step])
    """Shutdown steps by name, after all background tasks. The steps of all resources run together,
    each with a time limit.
    """


@dataclass(frozen=True)
class Resources:
    """Resources of a server, in order."""

    records: tuple[Resource, ...]

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.records)

    @property
    def routers(self) -> list[APIRouter]:
        return [router for resource in self for router in resource.routers]

    @property
    def open_routers(self) -> list[APIRouter]:
        return [router for resource in self for router in resource.open_routers]

    @property
    def jobs(self) -> list[JobQueue]:
        return [resource.jobs for resource in self if resource.jobs]
