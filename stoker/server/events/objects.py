"""Changed objects as messages. Each object is read and serialized once for all listeners."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from stoker.platform.web.schemas import iso
from stoker.registry.artifacts import service as artifacts
from stoker.registry.deployments import describing
from stoker.registry.deployments.context import DeploymentContext
from stoker.server.events import repository
from stoker.server.events.messages import EventMessage, told
from stoker.server.events.schemas import RunState
from stoker.store.changes import Change
from stoker.store.db import Session
from stoker.store.tables.agents import Run, RunStatus
from stoker.store.tables.artifacts import Artifact, UploadPart
from stoker.store.tables.checks import DeploymentChecks
from stoker.store.tables.deployments import Deployment, DeploymentEvent, DeploymentVersion
from stoker.store.tables.imports import Import
from stoker.store.tables.trials import Trial
from stoker.store.tables.videos import Video
from stoker.wire import sse
from stoker.workloads.agents.work import usage
from stoker.workloads.videos import service as videos
from stoker.workloads.videos.context import VideoContext

AT_ONCE = 100
"""Number of objects that are read together."""

DEPLOYMENT, ARTIFACT, VIDEO, RUN = "deployment", "artifact", "video", "run"
OWN: Mapping[type[Any], str] = {
    Deployment: DEPLOYMENT,
    Artifact: ARTIFACT,
    Video: VIDEO,
    Run: RUN,
}
OF_DEPLOYMENTS = (DeploymentVersion, DeploymentChecks, Trial, DeploymentEvent)
"""Tables with rows that appear in a deployment or in its lists."""


@dataclass(frozen=True)
class Contexts:
    deployments: DeploymentContext
    videos: VideoContext


class Dirty:
    """Changes since the last message. Each object is listed once."""

    def __init__(self) -> None:
        self._changed: dict[tuple[str, str], None] = {}
        self._deleted: dict[tuple[str, str], EventMessage] = {}
        self._uploads: set[str] = set()
        self._notices: list[DeploymentEvent] = []

    def __bool__(self) -> bool:
        return bool(self._changed or self._deleted or self._uploads or self._notices)

    def mark(self, kind: str, identifier: str) -> None:
        self._changed[kind, identifier] = None

    def add(self, change: Change) -> None:
        table, row = change.table, change.row
        if kind := OWN.get(table):
            if change.is_deleted:
                self._delete(kind, change)
            else:
                self.mark(kind, change.id)
        elif table is UploadPart and row is not None:
            self._uploads.add(row.upload_id)
        elif table is Import and row is not None:
            self.mark(ARTIFACT, row.artifact_id)
        elif table in OF_DEPLOYMENTS and row is not None:
            self.mark(DEPLOYMENT, row.deployment_id)
            if isinstance(row, DeploymentEvent) and not change.is_deleted:
                self._notices.append(row)

    def _delete(self, kind: str, change: Change) -> None:
        self._changed.pop((kind, change.id), None)
        body = told(f"{kind}.deleted", {"id": change.id})
        video_of = change.row.deployment_id if kind == VIDEO and change.row is not None else None
        self._deleted[kind, change.id] = EventMessage(body, change.account_id or "", video_of)

    async def taken(self, contexts: Contexts) -> AsyncGenerator[EventMessage]:
        """Yields all changes with the current state of the objects. Later changes remain for the
        next call.
        """
        changed, self._changed = self._changed, {}
        deleted, self._deleted = self._deleted, {}
        uploads, self._uploads = self._uploads, set()
        notices, self._notices = self._notices, []
        for row in notices:
            if message := _notice(contexts, row):
                yield message
        async with contexts.deployments.database.reading() as session:
            for artifact_id in await repository.imported_by(session, uploads) if uploads else ():
                changed[ARTIFACT, artifact_id] = None
            for kind, read in _READERS.items():
                ids = [
                    identifier
                    for of, identifier in changed
                    if of == kind and (of, identifier) not in deleted
                ]
                for start in range(0, len(ids), AT_ONCE):
                    for message in await read(contexts, session, ids[start : start + AT_ONCE]):
                        yield message
                    # Lets other tasks run.
                    await asyncio.sleep(0)
        for message in deleted.values():
            yield message


def _notice(contexts: Contexts, row: DeploymentEvent) -> EventMessage | None:
    entry = contexts.deployments.directory.find(row.deployment_id)
    if entry is None:
        return None
    body = {
        "deployment_id": row.deployment_id,
        "model": entry.model,
        "type": row.reason,
        "status": row.status,
        "message": row.message,
        "created_at": iso(row.created_at),
    }
    return EventMessage(told("notice", body), entry.account_id)


def _message(
    kind: str, account_id: str, shown: BaseModel, video_of: str | None = None
) -> EventMessage:
    return EventMessage(sse.framed(shown.model_dump_json().encode(), kind), account_id, video_of)


async def _deployments(
    contexts: Contexts, session: Session, ids: Collection[str]
) -> Sequence[EventMessage]:
    context = contexts.deployments
    return [
        _message(DEPLOYMENT, row.account_id, describing.response(context, row))
        for row in await repository.deployments(session, ids)
    ]


async def _artifacts(
    contexts: Contexts, session: Session, ids: Collection[str]
) -> Sequence[EventMessage]:
    rows = await repository.artifacts(session, ids)
    shown = await artifacts.shown(session, *rows)
    return [
        _message(ARTIFACT, row.account_id, artifact)
        for row, artifact in zip(rows, shown, strict=True)
    ]


async def _videos(
    contexts: Contexts, session: Session, ids: Collection[str]
) -> Sequence[EventMessage]:
    return [
        _message(VIDEO, row.account_id, videos.response(contexts.videos, row), row.deployment_id)
        for row in await repository.videos(session, ids)
    ]


async def _runs(
    contexts: Contexts, session: Session, ids: Collection[str]
) -> Sequence[EventMessage]:
    return [_message(RUN, row.account_id, _run(row)) for row in await repository.runs(session, ids)]


def _run(row: Run) -> RunState:
    error = None
    if row.error_code:
        error = {"code": row.error_code, "message": row.error_message or ""}
    return RunState.model_validate(
        {
            "id": row.id,
            "agent_id": row.agent_id,
            "model": row.model,
            "status": RunStatus(row.status),
            "finish_reason": row.finish_reason,
            "usage": usage(row),
            "error": error,
            "created_at": row.created_at,
            "completed_at": row.completed_at,
        }
    )


Reader = Callable[[Contexts, Session, Collection[str]], Awaitable[Sequence[EventMessage]]]
_READERS: Mapping[str, Reader] = {
    DEPLOYMENT: _deployments,
    ARTIFACT: _artifacts,
    VIDEO: _videos,
    RUN: _runs,
}
