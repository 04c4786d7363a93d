"""Events of background responses, stored in groups while they are generated."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from stoker.base.errors import InferenceError
from stoker.platform.sealing import Sealer
from stoker.store import db
from stoker.store.db import Database
from stoker.store.tables.responses import StoredResponse
from stoker.store.waiting import written
from stoker.workloads.responses import repository
from stoker.workloads.responses.replay import FIRST_OUTPUT, Event

WRITE_S = 0.4
"""Seconds for which events are gathered before they are stored."""
_LAST = ("response.completed", "response.incomplete")
_NOT_STORED = ("response.created", "response.in_progress")
_PLACES = ("type", "item_id", "output_index", "content_index", "summary_index")


class ResponseEventLog:
    """Stores the events of one response while its work lasts.

    Pieces of a text that are gathered between two writes become one event. A stored event never
    changes, unless the work begins again and no client can have received it.
    """

    def __init__(self, database: Database, row: StoredResponse, sealer: Sealer) -> None:
        """
        Args:
            row: the response, with the token of its lease.
        """
        self._database = database
        self._row = row
        self._sealer = sealer
        self._pending: list[Event] = []
        self._next = FIRST_OUTPUT
        """Sequence number of the first pending event."""
        self._writing = asyncio.Lock()

    async def answer(self, parts: AsyncGenerator[bytes]) -> dict[str, Any]:
        """Returns the response after the last part of its stream.

        The events that are not stored yet remain for `rest`. Raises `InferenceError` if the answer
        failed, and the errors of the parts.
        """
        flushing = asyncio.create_task(self._flush())
        try:
            async with aclosing(parts):
                return await self._read(parts)
        finally:
            await db.uncut(self._stop(flushing))

    def rest(self) -> tuple[int, bytes] | None:
        """Returns the events that are not stored yet, sealed, after the number of the last one."""
        if not self._pending:
            return None
        return self._next + len(self._pending) - 1, self._sealer.seal(self._pending)

    async def _read(self, parts: AsyncGenerator[bytes]) -> dict[str, Any]:
        begun, answered = b"", None
        async for part in parts:
            *events, begun = (begun + part).split(b"\n\n")
            for event in events:
                data = event.partition(b"data: ")[2]
                if not data:
                    continue
                fields: dict[str, Any] = msgspec.json.decode(data)
                kind = fields["type"]
                if kind in _LAST:
                    answered = fields["response"]
                elif kind == "error":
                    raise InferenceError(fields["message"], code=fields["code"])
                elif kind not in (*_NOT_STORED, "response.failed"):
                    self._add(kind, fields)
        if answered is None:
            raise InferenceError("The answer ended early.")
        return answered

    def _add(self, kind: str, fields: dict[str, Any]) -> None:
        del fields["type"], fields["sequence_number"]
        if kind.endswith(".delta") and self._pending and self._pending[-1][0] == kind:
            earlier = self._pending[-1][1]
            if all(earlier.get(name) == fields.get(name) for name in _PLACES):
                earlier["delta"] += fields["delta"]
                if "logprobs" in fields:
                    cast("list[Any]", earlier["logprobs"]).extend(fields["logprobs"])
                return
        self._pending.append((kind, fields))

    async def _flush(self) -> None:
        is_held = True
        while is_held:
            await asyncio.sleep(WRITE_S)
            async with self._writing:
                is_held = await self._write()

    async def _stop(self, flushing: "asyncio.Task[None]") -> None:
        async with self._writing:
            flushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flushing

    async def _write(self) -> bool:
        """Stores the pending events. Returns False if the response was deleted or cancelled, or
        another server holds it.
        """
        rest = self.rest()
        if rest is None:
            return True
        events, self._pending = self._pending, []
        self._next += len(events)

        async def write() -> bool:
            async with self._database.transaction() as session:
                if not await repository.count_events(session, self._row, len(rest[1])):
                    return False
                repository.add_events(session, self._row.id, *rest)
                return True

        return await written(write, "events of responses")
