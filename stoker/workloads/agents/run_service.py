"""Business rules of runs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stoker.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
)
from stoker.base.ids import Prefix, new_id
from stoker.inference.openai.messages import for_template
from stoker.platform.quotas.limits import Quota
from stoker.platform.sealing import Sealer, new_key
from stoker.platform.web import idempotency
from stoker.platform.web.principal import Principal
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.agents import ENDED, Agent, Run, RunStatus
from stoker.workloads.agents import events, repository, schemas, service
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.journal import append
from stoker.workloads.agents.transcript import RunInput
from stoker.workloads.agents.work import usage

_ERASED_AT_ONCE = 100
"""Runs erased in one transaction. Other writers wait for its end."""


async def create(
    session: Session,
    context: AgentContext,
    agent: Agent,
    caller: Principal,
    body: schemas.RunCreate,
) -> Run:
    """Raises `InvalidRequestError`, `RateLimitError` and the errors of `check_model`."""
    deployment_id = await service.check_model(context, agent.account_id, caller, agent.model)
    limit = context.settings.agent_runs_queued
    if await repository.unended(session, agent.account_id) >= limit:
        raise RateLimitError(
            f"This account has {limit} runs that have not ended. Try again later.",
            code="queue_full",
            retry_after_s=10,
        )
    await context.quotas.take(session, agent.account_id, Quota.RUNS)
    key = new_key(context.secret)
    sealer = Sealer(context.secret, key)
    row = Run(
        id=new_id(Prefix.RUN),
        account_id=agent.account_id,
        agent_id=agent.id,
        api_key=caller.public_id,
        deployment_id=deployment_id,
        model=agent.model,
        content_key=key,
        asked=sealer.seal(_asked(context, agent, body)),
        status=RunStatus.QUEUED.value,
        progress=0.0,
        tries=0,
        losses=0,
        steps=0,
        prompt_tokens=0,
        completion_tokens=0,
        worked_ms=0,
        microcredits=0,
        carry=0,
        created_at=db.now(),
    )
    row.stored_bytes = len(row.asked)
    await context.quotas.take(session, row.account_id, Quota.STORAGE_BYTES, row.stored_bytes)
    context.jobs.take(session, row)
    session.add(row)
    await session.flush()
    await append(session, context.followers, row, sealer, [_CREATED], last=0)
    return row


_CREATED: tuple[str, dict[str, Any]] = (events.CREATED, {})


def _asked(context: AgentContext, agent: Agent, body: schemas.RunCreate) -> RunInput:
    run_input: str | list[dict[str, Any]]
    if isinstance(body.input, str):
        run_input = body.input
    else:
        # Rejects input now that the first step would reject.
        for_template(body.input, "input")
        run_input = [message.model_dump(mode="json", exclude_none=True) for message in body.input]
    return RunInput(
        input=run_input,
        instructions=agent.instructions,
        functions=[tool for tool in agent.tools if tool["type"] == "function"],
        servers=[service.server_of(context, tool) for tool in agent.tools if tool["type"] == "mcp"],
        max_steps=agent.max_steps,
        config=agent.config,
    )


async def get(
    session: Session, account_id: str, agent_id: str, run_id: str, *, lock: bool = False
) -> Run:
    row = await repository.run(session, account_id, agent_id, run_id, lock=lock)
    if row is None:
        raise NotFoundError("Run not found", code="run_not_found")
    return row


async def submit(
    session: Session, context: AgentContext, row: Run, body: schemas.ToolOutputs
) -> None:
    """Stores outputs of calls. The run continues once it has all of them.

    Raises `ConflictError` if the run waits for no outputs, `InvalidRequestError` for a call that it
    does not wait for.
    """
    if row.status != RunStatus.REQUIRES_ACTION or row.waiting_for is None:
        raise ConflictError(
            f"The run is {row.status} and does not wait for tool outputs.", code="run_not_waiting"
        )
    sealer = _sealer(context, row)
    waiting: list[dict[str, Any]] = sealer.unseal(row.waiting_for)
    added: list[tuple[str, dict[str, Any]]] = []
    for index, output in enumerate(body.tool_outputs):
        call = next((item for item in waiting if item["id"] == output.tool_call_id), None)
        if call is None:
            field = f"tool_outputs[{index}].tool_call_id"
            raise InvalidRequestError(
                f"'{field}' is '{output.tool_call_id}', which is not one of the calls that "
                "this run waits for: "
                f"{', '.join(item['id'] for item in waiting) or 'they have outputs'}.",
                param=field,
            )
        waiting.remove(call)
        data = {"tool_call_id": call["id"], "output": output.output, "is_error": False}
        added.append((events.CALL_COMPLETED, data))
    more = sum(len(item.output.encode()) for item in body.tool_outputs)
    await context.quotas.take(session, row.account_id, Quota.STORAGE_BYTES, more)
    row.stored_bytes += more
    row.waiting_for = sealer.seal(waiting) if waiting else None
    if not waiting:
        row.status = RunStatus.QUEUED.value
        context.jobs.take(session, row)
    await session.flush()
    await append(session, context.followers, row, sealer, added)


async def cancel(session: Session, context: AgentContext, row: Run) -> None:
    """Cancels a run. Its worker loses the run with this transaction and stops.

    Raises `ConflictError` if the run has ended in another way.
    """
    if row.status == RunStatus.CANCELLED:
        return
    if row.status in ENDED:
        raise ConflictError(f"The run is already {row.status}.", code="run_ended")
    row.status = RunStatus.CANCELLED.value
    row.completed_at = db.now()
    row.waiting_for = row.lock_token = row.lock_expires_at = None
    await session.flush()
    event = (events.CANCELLED, {"usage": usage(row)})
    await append(session, context.followers, row, _sealer(context, row), [event])
    session.after_commit(lambda: context.jobs.cancel(row.id))


async def catch_up(context: AgentContext) -> None:
    """Notifies followers of events or deletions by other servers."""
    followed = context.followers.followed()
    if not followed:
        return
    async with context.database.reading() as session:
        reached = await repository.last_events(session, followed)
    for run_id in followed:
        if run_id in reached:
            context.followers.reached(run_id, reached[run_id])
        else:
            context.followers.deleted(run_id)


async def erase(session: Session, context: AgentContext, run_ids: Sequence[str]) -> None:
    """Erases runs. Later writes find no row, and without the keys every copy is unreadable."""
    for at in range(0, len(run_ids), _ERASED_AT_ONCE):
        some = run_ids[at : at + _ERASED_AT_ONCE]
        # Stored responses for `Idempotency-Key` contain the input.
        await idempotency.erase(session, some)
        await repository.delete_runs(session, some)

    def after() -> None:
        for run_id in run_ids:
            context.jobs.cancel(run_id)
            context.followers.deleted(run_id)

    session.after_commit(after)


async def erase_with_agent(context: AgentContext, account_id: str, agent_id: str) -> None:
    """Deletes an agent and erases all of its runs. If this is interrupted, the agent still exists.

    Raises `NotFoundError`.
    """
    is_deleted = False
    while not is_deleted:
        async with context.database.transaction() as session:
            agent = await service.get(session, account_id, agent_id, lock=True)
            run_ids = await repository.run_ids(session, agent.id, _ERASED_AT_ONCE)
            await erase(session, context, run_ids)
            if is_deleted := len(run_ids) < _ERASED_AT_ONCE:
                await idempotency.erase(session, [agent.id])
                await session.delete(agent)
    await context.database.scrub()


async def forget_old(context: AgentContext, now: datetime) -> None:
    """Erases the runs that are older than the retention period."""
    before = now - timedelta(days=context.settings.agent_run_retention_days)
    while True:
        async with context.database.transaction() as session:
            run_ids = await repository.old_run_ids(session, before, _ERASED_AT_ONCE)
            await erase(session, context, run_ids)
        if run_ids:
            await context.database.scrub()
        if len(run_ids) < _ERASED_AT_ONCE:
            return


def response(context: AgentContext, row: Run) -> schemas.Run:
    sealer = _sealer(context, row)
    request = msgspec.convert(sealer.unseal(row.asked), RunInput)
    required = None
    if row.waiting_for and row.status == RunStatus.REQUIRES_ACTION:
        required = schemas.RequiredAction(tool_calls=sealer.unseal(row.waiting_for))
    return schemas.Run(
        id=row.id,
        agent_id=row.agent_id,
        model=row.model,
        status=RunStatus(row.status),
        input=request.input,
        output=sealer.unseal(row.output) if row.output else None,
        finish_reason=row.finish_reason,
        required_action=required,
        usage=schemas.RunUsage(**usage(row)),
        error=_error(row),
        created_at=row.created_at,
        completed_at=row.completed_at,
    )


def state(row: Run) -> schemas.RunState:
    """Returns a run without its messages."""
    return schemas.RunState(
        id=row.id,
        agent_id=row.agent_id,
        model=row.model,
        status=RunStatus(row.status),
        finish_reason=row.finish_reason,
        usage=schemas.RunUsage(**usage(row)),
        error=_error(row),
        created_at=row.created_at,
        completed_at=row.completed_at,
    )


def _error(row: Run) -> schemas.RunError | None:
    if not row.error_code:
        return None
    return schemas.RunError(code=row.error_code, message=row.error_message or "")


def _sealer(context: AgentContext, row: Run) -> Sealer:
    return Sealer(context.secret, row.content_key)
