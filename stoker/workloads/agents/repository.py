"""Database statements for agents, runs and events."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CursorResult,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from stoker.platform.web.lists import Page, PageQuery, fetch_light_page, fitting
from stoker.store.changes import note
from stoker.store.db import Session
from stoker.store.tables.agents import UNENDED, Agent, Run, RunEvent, RunStatus
from stoker.workloads.agents.events import DELTAS

# Built once: building the statements of a run's steps takes half as long as executing them.
_AGENT = select(Agent).where(
    Agent.id == bindparam("agent_id"), Agent.account_id == bindparam("account_id")
)
_RUN = select(Run).where(
    Run.id == bindparam("run_id"),
    Run.agent_id == bindparam("agent_id"),
    Run.account_id == bindparam("account_id"),
)
_LOCKED_AGENT, _LOCKED_RUN = _AGENT.with_for_update(), _RUN.with_for_update()
_UNENDED = select(func.count()).where(
    Run.account_id == bindparam("account_id"), Run.status.in_(UNENDED)
)
# Sorted, so that two servers never wait for each other.
_HOLDERS = (
    select(Run.id, Run.lock_token)
    .where(Run.id.in_(bindparam("ids", expanding=True)))
    .order_by(Run.id)
    .with_for_update()
)
_EVENTS = select(RunEvent).where(RunEvent.run_id == bindparam("run_id")).order_by(RunEvent.sequence)
_BEYOND = 2**31 - 1
"""Larger than any sequence number."""
_LAST = select(func.max(RunEvent.sequence)).where(RunEvent.run_id == bindparam("run_id"))
_AGENT_BYTES = func.coalesce(func.length(Agent.instructions), 0) + func.length(
    cast(Agent.tools, Text)
)
_RUN_BYTES = func.length(Run.asked) + func.coalesce(func.length(Run.output), 0)
_SIZES = (
    select(RunEvent.sequence, func.length(RunEvent.data))
    .where(RunEvent.run_id == bindparam("run_id"))
    .limit(bindparam("limit", type_=Integer))
)
_SIZES_AFTER = _SIZES.where(RunEvent.sequence > bindparam("after")).order_by(RunEvent.sequence)
_SIZES_BEFORE = _SIZES.where(RunEvent.sequence < bindparam("after")).order_by(
    RunEvent.sequence.desc()
)
_MILESTONE_SIZES = _SIZES_AFTER.where(RunEvent.type.not_in(DELTAS))
_THESE = _EVENTS.where(RunEvent.sequence.in_(bindparam("sequences", expanding=True)))


async def last_events(session: Session, run_ids: Collection[str]) -> dict[str, int]:
    """Returns the last sequence number of each of these runs that exists."""
    statement = (
        select(Run.id, func.coalesce(func.max(RunEvent.sequence), 0))
        .outerjoin(RunEvent, RunEvent.run_id == Run.id)
        .where(Run.id.in_(run_ids))
        .group_by(Run.id)
    )
    return {row[0]: row[1] for row in await session.execute(statement)}


async def agent(
    session: Session, account_id: str, agent_id: str, *, lock: bool = False
) -> Agent | None:
    statement = _LOCKED_AGENT if lock else _AGENT
    return await session.scalar(statement, {"agent_id": agent_id, "account_id": account_id})


async def agents(session: Session, account_id: str, query: PageQuery) -> Page[Agent]:
    statement = select(Agent).where(Agent.account_id == account_id)
    return await fetch_light_page(session, statement, Agent.id, query, weight=_AGENT_BYTES)


async def run(
    session: Session, account_id: str, agent_id: str, run_id: str, *, lock: bool = False
) -> Run | None:
    statement = _LOCKED_RUN if lock else _RUN
    parameters = {"run_id": run_id, "agent_id": agent_id, "account_id": account_id}
    return await session.scalar(statement, parameters)


async def these(session: Session, ids: Collection[str]) -> Sequence[Run]:
    """Returns the existing runs among these ids."""
    return (await session.scalars(select(Run).where(Run.id.in_(ids)))).all()


async def runs(session: Session, agent_id: str, query: PageQuery) -> Page[Run]:
    statement = select(Run).where(Run.agent_id == agent_id)
    return await fetch_light_page(session, statement, Run.id, query, weight=_RUN_BYTES)


async def run_ids(session: Session, agent_id: str, limit: int) -> Sequence[str]:
    """Returns ids of an agent's runs."""
    statement = select(Run.id).where(Run.agent_id == agent_id).limit(limit)
    return (await session.scalars(statement)).all()


async def old_run_ids(session: Session, before: datetime, limit: int) -> Sequence[str]:
    """Returns ids of runs that ended before a moment, or that have waited for tool outputs since
    before it.
    """
    heard_of = (
        select(RunEvent.run_id)
        .where(RunEvent.run_id == Run.id, RunEvent.created_at >= before)
        .exists()
    )
    # The creation time only narrows the search: the events of a younger run are younger, too.
    waits = (Run.status == RunStatus.REQUIRES_ACTION.value) & (Run.created_at < before) & ~heard_of
    statement = select(Run.id).where(or_(Run.completed_at < before, waits)).limit(limit)
    return (await session.scalars(statement)).all()


async def unended(session: Session, account_id: str) -> int:
    return await session.scalar(_UNENDED, {"account_id": account_id}) or 0


async def delete_runs(session: Session, ids: Collection[str]) -> None:
    await session.execute(delete(RunEvent).where(RunEvent.run_id.in_(ids)))
    gone = delete(Run).where(Run.id.in_(ids)).returning(Run.id, Run.account_id)
    for run_id, account_id in (await session.execute(gone)).all():
        note(session, Run, run_id, account_id, is_deleted=True)


async def holders(session: Session, ids: Collection[str]) -> dict[str, str | None]:
    """Returns the lock tokens of runs and locks their rows until the transaction ends."""
    return {row[0]: row[1] for row in await session.execute(_HOLDERS, {"ids": list(ids)})}


async def change(session: Session, run_id: str, values: Mapping[str, Any]) -> bool:
    result = await session.execute(
        update(Run)
        .where(Run.id == run_id)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    note(session, Run, run_id)
    return isinstance(result, CursorResult) and result.rowcount == 1


async def add_events(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        await session.execute(insert(RunEvent), list(rows))


async def last_sequence(session: Session, run_id: str) -> int:
    return await session.scalar(_LAST, {"run_id": run_id}) or 0


async def events(
    session: Session, run_id: str, *, after: int, limit: int, newest_first: bool = False
) -> Page[RunEvent]:
    """Returns events in order, up to `PAGE_BYTES` in total.

    Args:
        after: the sequence number of the last known event.
    """
    if not newest_first:
        return await _page(session, _SIZES_AFTER, run_id, after, limit)
    before = after or _BEYOND
    page = await _page(session, _SIZES_BEFORE, run_id, before, limit)
    return Page(page.rows[::-1], page.has_more)


async def milestones(session: Session, run_id: str, *, after: int, limit: int) -> Page[RunEvent]:
    """Returns events in order like `events`, without the pieces of messages."""
    return await _page(session, _MILESTONE_SIZES, run_id, after, limit)


async def _page(
    session: Session, statement: Any, run_id: str, after: int, limit: int
) -> Page[RunEvent]:
    parameters = {"run_id": run_id, "after": after, "limit": limit + 1}
    sizes: Sequence[Any] = (await session.execute(statement, parameters)).all()
    count = fitting([size for _, size in sizes[:limit]])
    sequences = [sequence for sequence, _ in sizes[:count]]
    rows = await session.scalars(_THESE, {"run_id": run_id, "sequences": sequences})
    return Page(rows.all(), len(sizes) > count)
