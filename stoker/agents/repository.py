"""All statements on agents, runs and events."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, delete, func, insert, or_, select, update

from stoker.agents.events import DELTAS
from stoker.agents.models import UNENDED, Agent, Run, RunEvent, RunStatus
from stoker.db import Session
from stoker.lists import Page, PageQuery, fetch_page


async def agent(
    session: Session, account_id: str, agent_id: str, *, lock: bool = False
) -> Agent | None:
    found = select(Agent).where(Agent.id == agent_id, Agent.account_id == account_id)
    return await session.scalar(found.with_for_update() if lock else found)


async def agents(session: Session, account_id: str, query: PageQuery) -> Page[Agent]:
    statement = select(Agent).where(Agent.account_id == account_id)
    return await fetch_page(session, statement, Agent.id, query)


async def run(
    session: Session, account_id: str, agent_id: str, run_id: str, *, lock: bool = False
) -> Run | None:
    found = select(Run).where(
        Run.id == run_id, Run.agent_id == agent_id, Run.account_id == account_id
    )
    return await session.scalar(found.with_for_update() if lock else found)


async def runs(session: Session, agent_id: str, query: PageQuery) -> Page[Run]:
    return await fetch_page(session, select(Run).where(Run.agent_id == agent_id), Run.id, query)


async def run_ids(session: Session, agent_id: str) -> Sequence[str]:
    return (await session.scalars(select(Run.id).where(Run.agent_id == agent_id))).all()


async def old_run_ids(session: Session, before: datetime, limit: int) -> Sequence[str]:
    """Runs that ended before a moment, or have waited for somebody since before it."""
    heard_of = (
        select(RunEvent.run_id)
        .where(RunEvent.run_id == Run.id, RunEvent.created_at >= before)
        .exists()
    )
    # Creation only narrows the search: what is younger has events that are.
    waits = (Run.status == RunStatus.REQUIRES_ACTION.value) & (Run.created_at < before) & ~heard_of
    statement = select(Run.id).where(or_(Run.completed_at < before, waits)).limit(limit)
    return (await session.scalars(statement)).all()


async def unended(session: Session, account_id: str) -> int:
    statement = select(func.count()).where(Run.account_id == account_id, Run.status.in_(UNENDED))
    return await session.scalar(statement) or 0


async def delete_runs(session: Session, ids: Collection[str]) -> None:
    await session.execute(delete(RunEvent).where(RunEvent.run_id.in_(ids)))
    await session.execute(delete(Run).where(Run.id.in_(ids)))


async def holders(session: Session, ids: Collection[str]) -> dict[str, str | None]:
    """The lock tokens of runs, which nobody changes until the transaction's end."""
    found = select(Run.id, Run.lock_token).where(Run.id.in_(ids))
    # In one order, so that two servers never wait for each other.
    statement = found.order_by(Run.id).with_for_update()
    return {row[0]: row[1] for row in await session.execute(statement)}


async def change(session: Session, run_id: str, values: Mapping[str, Any]) -> bool:
    result = await session.execute(
        update(Run)
        .where(Run.id == run_id)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return isinstance(result, CursorResult) and result.rowcount == 1


async def add_events(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        await session.execute(insert(RunEvent), list(rows))


async def last_sequence(session: Session, run_id: str) -> int:
    statement = select(func.max(RunEvent.sequence)).where(RunEvent.run_id == run_id)
    return await session.scalar(statement) or 0


async def events(
    session: Session, run_id: str, *, after: int, limit: int, newest_first: bool = False
) -> Sequence[RunEvent]:
    """In order; after: the sequence number of the last one that is known."""
    column = RunEvent.sequence
    beyond = column < after if newest_first and after else column > after
    order = column.desc() if newest_first else column
    statement = select(RunEvent).where(RunEvent.run_id == run_id, beyond)
    return (await session.scalars(statement.order_by(order).limit(limit))).all()


async def milestones(session: Session, run_id: str) -> Sequence[RunEvent]:
    """All events but the pieces of messages, in order."""
    statement = select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.type.not_in(DELTAS))
    return (await session.scalars(statement.order_by(RunEvent.sequence))).all()
