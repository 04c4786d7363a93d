"""A run's events, as a list or as a stream."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Request, Response

from stoker.base.errors import NotFoundError
from stoker.inference.streaming import Streamed, streamed
from stoker.platform.sealing import Sealer
from stoker.platform.web.lists import Page, PageQuery, json_page
from stoker.runtime.interface import KEEP_ALIVE
from stoker.store.db import Session
from stoker.store.tables.agents import Run, RunEvent
from stoker.tenancy.keys.auth import AccountId
from stoker.wire import sse
from stoker.workloads.agents import events, repository, run_service, schemas
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.events import JournalEvent
from stoker.workloads.agents.followers import Follower
from stoker.workloads.agents.work import read

SILENCE_S = 15.0
_PAGE = 256


@dataclass(frozen=True)
class RunPath:
    """The path of a run: its agent, its id and the account."""

    agent_id: Annotated[str, Path()]
    run_id: Annotated[str, Path()]
    account_id: AccountId

    async def row(self, session: Session, *, lock: bool = False) -> Run:
        """Returns the run's row. Raises `NotFoundError`."""
        return await run_service.get(
            session, self.account_id, self.agent_id, self.run_id, lock=lock
        )


async def page(
    session: Session, context: AgentContext, row: Run, after: int, query: PageQuery
) -> Response:
    page_rows = await repository.events(
        session, row.id, after=after, limit=query.limit, newest_first=query.order == "desc"
    )
    sealer = Sealer(context.secret, row.content_key)
    return await json_page(page_rows, lambda event: _schema(row.id, read(sealer, [event])[0]))


async def follow(request: Request, context: AgentContext, place: RunPath, after: int) -> Streamed:
    """Streams all events after a sequence number, including future ones, as server-sent events.

    Raises `NotFoundError`.
    """
    return await streamed(request, _parts(context, place, after))


async def _parts(context: AgentContext, place: RunPath, after: int) -> AsyncGenerator[bytes]:
    with context.followers.follow(place.run_id) as follower:
        # Reads after subscribing, so that no event is missed in between.
        async with context.database.reading() as session:
            row = await place.row(session)
            page = await repository.events(session, row.id, after=after, limit=_PAGE)
        sealer, last = Sealer(context.secret, row.content_key), after
        pending, is_page = read(sealer, page.rows), page.has_more
        # Sends the response's head at once: the next event may take long.
        yield b": run\n\n"
        while True:
            for event in pending:
                yield _sse(row.id, event)
                last = event.sequence
                follower.heard = max(follower.heard, last)
                if event.type in events.LAST:
                    return
            if not is_page and row.completed_at is not None:
                return
            pending = [] if is_page else [item for item in follower.take() if item.sequence > last]
            is_gap = bool(pending) and pending[0].sequence != last + 1
            if is_page or is_gap or follower.is_behind:
                follower.is_behind = False
                page = await _after(context, row.id, last)
                pending, is_page = read(sealer, page.rows), page.has_more
            if pending:
                continue
            if follower.is_deleted:
                yield _line(events.DELETED, "{}")
                return
            if follower.is_over:
                return
            if not await follower.wait(SILENCE_S):
                yield KEEP_ALIVE
                if not context.database.is_sqlite:
                    page = await _looked_up(context, place, follower, last)
                    pending, is_page = read(sealer, page.rows), page.has_more


async def _looked_up(
    context: AgentContext, place: RunPath, follower: Follower, last: int
) -> Page[RunEvent]:
    """Returns the events after a sequence number from the database. Another server that works on
    the run does not notify this process.
    """
    async with context.database.reading() as session:
        try:
            row = await place.row(session)
        except NotFoundError:
            follower.hear_of_deletion()
            return Page((), has_more=False)
        return await repository.events(session, row.id, after=last, limit=_PAGE)


async def _after(context: AgentContext, run_id: str, last: int) -> Page[RunEvent]:
    async with context.database.reading() as session:
        return await repository.events(session, run_id, after=last, limit=_PAGE)


def _schema(run_id: str, event: JournalEvent) -> schemas.RunEvent:
    return schemas.RunEvent(
        id=str(event.sequence),
        run_id=run_id,
        sequence=event.sequence,
        type=event.type,
        data=event.data,
        created_at=event.created_at,
    )


def _sse(run_id: str, event: JournalEvent) -> bytes:
    body = _schema(run_id, event).model_dump_json()
    return f"id: {event.sequence}\n".encode() + _line(event.type, body)


def _line(name: str, body: str) -> bytes:
    return sse.framed(body.encode(), name)
