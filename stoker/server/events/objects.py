"""Changed objects as messages. Each object is read and serialized once for all listeners."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any

from stoker.platform.parts import ServerParts
from stoker.platform.resource import EventObjects, Resources
from stoker.platform.web.context import Platform
from stoker.platform.web.schemas import iso
from stoker.registry.deployments.directory import Directory
from stoker.server.events.messages import EventMessage, told
from stoker.store.changes import Change
from stoker.store.db import Session
from stoker.store.tables.deployments import DeploymentEvent
from stoker.wire import sse

AT_ONCE = 100
"""Number of objects that are read together."""


class Shown:
    """Objects of all resources that event streams show."""

    def __init__(self, parts: ServerParts) -> None:
        self.parts = parts
        self.kinds = [item.events for item in parts.get(Resources) if item.events]
        self.by_table = {kind.table: kind for kind in self.kinds}
        self.related = {
            table: (kind, related) for kind in self.kinds for table, related in kind.related.items()
        }

    def percents(self) -> dict[tuple[str, str], int]:
        """Returns the progress of all running objects, by kind and id."""
        return {
            (kind.kind, identifier): int(share * 100)
            for kind in self.kinds
            if kind.progress
            for identifier, share in kind.progress(self.parts).items()
        }


class Dirty:
    """Changes since the last message. Each object is listed once."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._changed: dict[tuple[str, str], None] = {}
        self._deleted: dict[tuple[str, str], EventMessage] = {}
        self._unresolved: dict[type[Any], set[str]] = {}
        """Maps tables to ids from which `Related.resolve` finds the changed objects."""
        self._notices: list[DeploymentEvent] = []

    def __bool__(self) -> bool:
        return bool(self._changed or self._deleted or self._unresolved or self._notices)

    def mark(self, kind: str, identifier: str) -> None:
        self._changed[kind, identifier] = None

    def add(self, change: Change) -> None:
        table, row = change.table, change.row
        if kind := self._shown.by_table.get(table):
            if change.is_deleted:
                self._delete(kind, change)
            else:
                self.mark(kind.kind, change.id)
        elif row is not None and (place := self._shown.related.get(table)):
            owner, related = place
            identifier = getattr(row, related.column)
            if related.resolve:
                self._unresolved.setdefault(table, set()).add(identifier)
            else:
                self.mark(owner.kind, identifier)
            if isinstance(row, DeploymentEvent) and not change.is_deleted:
                self._notices.append(row)

    def _delete(self, kind: EventObjects, change: Change) -> None:
        self._changed.pop((kind.kind, change.id), None)
        body = told(f"{kind.kind}.deleted", {"id": change.id})
        message = EventMessage(body, change.account_id or "", _deployment_of(kind, change.row))
        self._deleted[kind.kind, change.id] = message

    async def taken(self) -> AsyncGenerator[EventMessage]:
        """Yields all changes with the current state of the objects. Later changes remain for the
        next call.
        """
        changed, self._changed = self._changed, {}
        deleted, self._deleted = self._deleted, {}
        unresolved, self._unresolved = self._unresolved, {}
        notices, self._notices = self._notices, []
        parts = self._shown.parts
        for row in notices:
            if message := _notice(parts.get(Directory), row):
                yield message
        async with parts.get(Platform).database.reading() as session:
            for table, ids in unresolved.items():
                for key in await self._resolved(session, table, ids):
                    changed[key] = None
            for kind in self._shown.kinds:
                existing = [
                    identifier
                    for of, identifier in changed
                    if of == kind.kind and (of, identifier) not in deleted
                ]
                for start in range(0, len(existing), AT_ONCE):
                    chunk = existing[start : start + AT_ONCE]
                    for message in await _read(kind, parts, session, chunk):
                        yield message
                    # Lets other tasks run.
                    await asyncio.sleep(0)
        for message in deleted.values():
            yield message

    async def _resolved(
        self, session: Session, table: type[Any], ids: set[str]
    ) -> list[tuple[str, str]]:
        owner, related = self._shown.related[table]
        resolved = await related.resolve(session, ids) if related.resolve else ()
        return [(owner.kind, identifier) for identifier in resolved]


async def _read(
    kind: EventObjects, parts: ServerParts, session: Session, ids: Collection[str]
) -> Sequence[EventMessage]:
    return [
        EventMessage(
            sse.framed(body.model_dump_json().encode(), kind.kind),
            row.account_id,
            _deployment_of(kind, row),
        )
        for row, body in await kind.read(parts, session, ids)
    ]


def _deployment_of(kind: EventObjects, row: Any) -> str | None:
    """Returns the deployment whose keys may see a row. None if no such key may."""
    return row.deployment_id if kind.is_for_deployment_keys and row is not None else None


def _notice(directory: Directory, row: DeploymentEvent) -> EventMessage | None:
    entry = directory.find(row.deployment_id)
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
