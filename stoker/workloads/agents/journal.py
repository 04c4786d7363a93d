"""Writes the events of all runs that this server works on, in shared commits.

Followers are notified of an event once it is durable. A published event is therefore never
withdrawn, and a sequence number never has two meanings.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import IntegrityError

from stoker.platform.sealing import Sealer
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.agents import Run
from stoker.store.waiting import written
from stoker.workloads.agents import repository
from stoker.workloads.agents.events import DELTAS, JournalEvent
from stoker.workloads.agents.followers import Followers

log = logging.getLogger(__name__)

_EVENTS = "events of runs"
GATHER_S = 0.1
"""Time in seconds for which message deltas are gathered if no urgent write is pending."""
STEP_BYTES = 1 << 20
"""Bytes that are sealed in one step of the event loop, plus about the size of the largest event."""


class LostError(Exception):
    """The run was deleted or cancelled, or another server has taken it over."""


def sealed(run_id: str, sealer: Sealer, events: Sequence[JournalEvent]) -> list[dict[str, Any]]:
    """Returns events as encrypted rows."""
    return [
        {
            "run_id": run_id,
            "sequence": event.sequence,
            "type": event.type,
            "data": sealer.seal(event.data),
            "created_at": event.created_at,
        }
        for event in events
    ]


async def append(
    session: Session,
    followers: Followers,
    run: Run,
    sealer: Sealer,
    given: Sequence[tuple[str, dict[str, Any]]],
    *,
    written: Sequence[JournalEvent] = (),
    last: int | None = None,
) -> None:
    """Appends events (type, data) to a run with a row that the transaction has locked or just
    changed.

    Args:
        written: events of the run's previous holder that are written before the new ones.
        last: the last sequence number of the run, if it is known.
    """
    if written:
        last = written[-1].sequence
    elif last is None:
        last = await repository.last_sequence(session, run.id)
    events = [
        *written,
        *(
            JournalEvent(last + number, name, data, db.now())
            for number, (name, data) in enumerate(given, start=1)
        ),
    ]
    await repository.add_events(session, sealed(run.id, sealer, events))
    session.after_commit(lambda: followers.publish(run.id, events))


@dataclass
class _PendingWrites:
    """Pending writes of one run."""

    writer: "JournalWriter"
    events: list[JournalEvent] = field(default_factory=list[JournalEvent])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    waiting: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])
    is_done: bool = False
    """True once the entry is written or will never be written."""

    def fail(self, error: Exception) -> None:
        self.writer.lose(error)
        self.end(error)

    def end(self, error: Exception | None) -> None:
        self.is_done = True
        for future in self.waiting:
            if future.done():
                continue
            if error:
                future.set_exception(error)
            else:
                future.set_result(None)


class Journal:
    def __init__(self, database: Database, followers: Followers) -> None:
        self._database = database
        self._followers = followers
        self._entries: dict[str, _PendingWrites] = {}
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()
        self._writing: set[JournalWriter] = set()
        self._written = asyncio.Event()

    def writer(self, run: Run, sealer: Sealer, last: int) -> "JournalWriter":
        """Returns a writer for the holder of the run's lease, with the token that the row has now.

        Args:
            last: the last sequence number of the run's events.
        """
        return JournalWriter(self, run.id, run.lock_token or "", sealer, last)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._news.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._urgent.wait()
            entries, self._entries = self._entries, {}
            self._news.clear()
            self._urgent.clear()
            # The entries may have been withdrawn meanwhile.
            if entries:
                await self._write([*entries.values()])

    async def _write(self, entries: Sequence[_PendingWrites]) -> None:
        """Writes the entries. If writing fails, every entry is notified and the next batch
        continues.
        """
        self._writing = {entry.writer for entry in entries}
        self._written.clear()
        try:
            await self._write_all(entries)
        except Exception as error:
            log.exception("runs' events could not be written")
            for entry in entries:
                if not entry.is_done:
                    entry.fail(error)
        finally:
            self._writing = set()
            self._written.set()

    def entry(self, writer: "JournalWriter", *, urgent: bool) -> _PendingWrites:
        """Returns the writer's pending entry. The entry is written soon, or at once if it is
        urgent.
        """
        known = self._entries.get(writer.run_id)
        if known is None or known.writer is not writer:
            if known:
                known.end(LostError())
            known = self._entries[writer.run_id] = _PendingWrites(writer)
        self._news.set()
        if urgent:
            self._urgent.set()
        return known

    async def withdraw(self, writer: "JournalWriter") -> list[JournalEvent]:
        """Returns the unwritten events of a writer, once none of them is being written."""
        while writer in self._writing:
            await self._written.wait()
        known = self._entries.get(writer.run_id)
        if known is None or known.writer is not writer:
            return []
        del self._entries[writer.run_id]
        return known.events

    async def _write_all(self, entries: Sequence[_PendingWrites]) -> None:
        rows: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            try:
                rows[entry.writer.run_id] = await self._sealed(entry)
            except Exception as error:
                # A failure to encrypt one run's event must not affect other runs.
                log.exception("run event could not be encrypted")
                entry.fail(error)
        entries = [entry for entry in entries if entry.writer.run_id in rows]
        try:
            run_ids = await written(lambda: self._commit(entries, rows), _EVENTS)
        except Exception:
            log.exception("runs' events could not be written together; writing each run's alone")
            for entry in entries:
                await self._write_alone(entry, rows)
            return
        for entry in entries:
            self._end(entry, run_ids)

    async def _write_alone(
        self, entry: _PendingWrites, rows: Mapping[str, Sequence[dict[str, Any]]]
    ) -> None:
        try:
            run_ids = await written(lambda: self._commit([entry], rows), _EVENTS)
        except IntegrityError:
            # The rows conflict with those of another server, which now holds the run.
            run_ids = set[str]()
        except Exception as error:
            log.exception("run's events could not be written")
            entry.fail(error)
            return
        self._end(entry, run_ids)

    def _end(self, entry: _PendingWrites, held: set[str]) -> None:
        if entry.writer.run_id not in held:
            entry.fail(LostError())
            return
        self._followers.publish(entry.writer.run_id, entry.events)
        entry.end(None)

    @staticmethod
    async def _sealed(entry: _PendingWrites) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        size = 0
        for event in entry.events:
            if size > STEP_BYTES:
                await asyncio.sleep(0)
                size = 0
            rows += sealed(entry.writer.run_id, entry.writer.sealer, [event])
            size += len(rows[-1]["data"])
        return rows

    async def _commit(
        self, entries: Sequence[_PendingWrites], rows: Mapping[str, Sequence[dict[str, Any]]]
    ) -> set[str]:
        """Returns the ids of the runs that their writers still held.

        Args:
            rows: the events by run.
        """
        owned: set[str] = set()
        async with self._database.transaction() as session:
            tokens = await repository.holders(session, [item.writer.run_id for item in entries])
            for entry in entries:
                writer = entry.writer
                if tokens.get(writer.run_id) != writer.token:
                    continue
                owned.add(writer.run_id)
                if entry.values:
                    await repository.change(session, writer.run_id, entry.values)
            await repository.add_events(session, [row for run_id in owned for row in rows[run_id]])
        return owned


class JournalWriter:
    """Appends events to one run. Valid only while its owner holds the run's lease."""

    def __init__(
        self, journal: Journal, run_id: str, token: str, sealer: Sealer, last: int
    ) -> None:
        self.run_id = run_id
        self.token = token
        self.sealer = sealer
        self._journal = journal
        self._last = last
        self._lost: Exception | None = None

    def lose(self, error: Exception) -> None:
        """Makes all later additions raise the error."""
        self._lost = error

    def add(self, name: str, data: dict[str, Any]) -> None:
        """Queues an event to be written soon. Raises `LostError` once it is known that it cannot be
        written.
        """
        if self._lost:
            raise self._lost
        events = self._journal.entry(self, urgent=False).events
        self._last += 1
        events.append(JournalEvent(self._last, name, data, db.now()))

    def add_delta(self, name: str, step: int, text: str) -> None:
        """Queues a piece of a message. Pieces that are queued before the next write are merged into
        one.
        """
        events = self._journal.entry(self, urgent=False).events
        if events and events[-1].type == name and name in DELTAS:
            events[-1].data["text"] += text
        else:
            self.add(name, {"step": step, "text": text})

    def set(self, values: Mapping[str, Any]) -> None:
        """Queues columns of the run's row, to be written together with the events added so far."""
        self._journal.entry(self, urgent=False).values |= values

    def hurry(self) -> None:
        """Requests an immediate write of the pending events, without waiting for it."""
        self._journal.entry(self, urgent=True)

    async def take(self) -> list[JournalEvent]:
        """Withdraws the events that are not written. The caller must write them, and all values
        again.

        Raises `LostError`.
        """
        events = await self._journal.withdraw(self)
        if self._lost:
            raise self._lost
        return events

    async def commit(self) -> None:
        """Waits until all added events are durable. Raises `LostError`."""
        if self._lost:
            raise self._lost
        entry = self._journal.entry(self, urgent=True)
        future = asyncio.get_running_loop().create_future()
        entry.waiting.append(future)
        await future
