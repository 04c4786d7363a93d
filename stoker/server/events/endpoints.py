import math
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

import stoker
from stoker.base.errors import InvalidRequestError, NotFoundError, responses
from stoker.inference.operation import EVENTS
from stoker.inference.streaming import Streamed, streamed
from stoker.platform.web.context import ReadSession
from stoker.platform.web.lists import ListResponse
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments import service as deployments
from stoker.runtime.interface import KEEP_ALIVE
from stoker.server.events import machine, nodes, schemas
from stoker.server.events.context import ContextDep, WatchContext
from stoker.server.events.messages import Visibility, told
from stoker.server.events.series import COARSE_S, COLUMNS, FINE_KEPT, FINE_S
from stoker.store.db import NO_CONTROL
from stoker.tenancy.keys.auth import AccountId, ActingFor, Caller, KeyedRoute, Manager, Operator
from stoker.tenancy.keys.auth import authenticate_again as again

CHECK_S = 1.0
"""Interval in seconds between key checks. A stream ends within this time after its key ends."""
SILENCE_S = 15.0
MOST_ACCOUNTS = 100
MOST_WINDOW_S = 86_400

router = APIRouter(prefix="/v1", tags=["Watching"], route_class=KeyedRoute)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENTS: {"schema": {"type": "string"}}}}
}


def _reach(caller: Principal, accounts: str | None, acting_for: str | None) -> Visibility:
    if caller.scope is Scope.DEPLOYMENT:
        return Visibility(frozenset({caller.account_id or ""}), caller.deployment_ids)
    if caller.scope is Scope.ACCOUNT:
        if accounts is not None:
            raise InvalidRequestError(
                "Only an operator's key may set 'accounts'. This key receives the events of its "
                "own account.",
                param="accounts",
            )
        return Visibility(frozenset({caller.account_id or ""}))
    named = [account_id for account_id in (accounts or acting_for or "").split(",") if account_id]
    if len(named) > MOST_ACCOUNTS:
        raise InvalidRequestError(f"Name at most {MOST_ACCOUNTS} accounts.", param="accounts")
    return Visibility(frozenset(named) if named else None)


@router.get("/events", status_code=200, response_class=Streamed, responses=_STREAM | responses())
async def follow_events(
    request: Request,
    caller: Caller,
    context: ContextDep,
    *,
    accounts: Annotated[
        str | None,
        Query(
            max_length=4096,
            pattern=NO_CONTROL,
            description="Operators only: account ids, separated by commas. Default: all.",
        ),
    ] = None,
    x_stoker_account: ActingFor = None,
) -> Streamed:
    """Follow changes as server-sent events. Statistics follow about once a second."""
    reach = _reach(caller, accounts, x_stoker_account)
    return await streamed(request, _events(request, context, caller, reach))


async def _events(
    request: Request, context: WatchContext, caller: Principal, reach: Visibility
) -> AsyncGenerator[bytes]:
    with context.broadcast.listening(reach, caller.account_id, caller.key_id) as listener:
        yield told("hello", {"at": round(time.time(), 3), "version": stoker.__version__})
        spoke_at = checked_at = time.monotonic()
        while not listener.is_over:
            await listener.wait(CHECK_S)
            now = time.monotonic()
            if now - checked_at >= CHECK_S:
                # Raises an error if the key has ended or the browser was signed out.
                await again(request)
                checked_at = now
            if content := listener.take():
                spoke_at = now
                yield content
            elif now - spoke_at >= SILENCE_S:
                spoke_at = now
                yield KEEP_ALIVE


@router.get("/deployments/{deployment_id}/metrics", responses=responses(NotFoundError))
async def deployment_metrics(
    deployment_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
    window_s: Annotated[
        int,
        Query(
            ge=60,
            le=MOST_WINDOW_S,
            description="Time range until now, seconds. Beyond an hour, steps are one minute.",
        ),
    ] = 900,
) -> schemas.DeploymentMetrics:
    """Get statistics of a deployment's calls, step by step. This server remembers one day."""
    row = await deployments.get(session, account_id, deployment_id)
    step_s = FINE_S if window_s <= FINE_S * FINE_KEPT else COARSE_S
    count = math.ceil(window_s / step_s)
    now = context.history.now()
    series = context.history.series(row.id)
    if series is None:
        return _metrics((int(now) // step_s - count + 1) * step_s, step_s, [None] * count)
    start, rows = series.rows(now, step_s, count)
    return _metrics(start, step_s, rows)


def _metrics(
    start: int, step_s: int, rows: Sequence[Sequence[float] | None]
) -> schemas.DeploymentMetrics:
    columns: dict[str, list[float | None]] = {
        name: [_number(row, at) for row in rows] for at, name in enumerate(COLUMNS)
    }

    def counts(name: str) -> list[int | None]:
        return [None if value is None else round(value) for value in columns[name]]

    def numbers(name: str) -> list[float | None]:
        return [None if value is None else round(value, 3) for value in columns[name]]

    return schemas.DeploymentMetrics(
        start=start,
        step_s=step_s,
        requests=schemas.RequestCounts(
            ok=counts("ok"),
            client_error=counts("client_error"),
            server_error=counts("server_error"),
        ),
        latency_ms=schemas.Latencies(p50=numbers("p50"), p90=numbers("p90"), p99=numbers("p99")),
        queue=counts("queue"),
        batch_size=numbers("batch_size"),
        tokens=counts("tokens"),
        replicas=counts("replicas"),
        memory_bytes=counts("memory_bytes"),
    )


def _number(row: Sequence[float] | None, at: int) -> float | None:
    if row is None or math.isnan(row[at]):
        return None
    return row[at]


@router.get("/machine", responses=responses())
async def get_machine(
    caller: Manager, context: ContextDep, x_stoker_account: ActingFor = None
) -> schemas.Machine:
    """Get the machine, its engines and its replicas: of all accounts for operators, otherwise of
    the key's own account.
    """
    account_id = caller.account_id or x_stoker_account
    reach = Visibility(None if account_id is None else frozenset({account_id}))
    return await machine.machine(context.settings, context.runtime, context.directory, reach)


@router.get("/nodes", response_model=ListResponse[schemas.Node], responses=responses())
async def list_nodes(_operator: Operator, context: ContextDep) -> Response:
    """List the machines that run replicas, each with its memory and leases, as this server sees
    them. Empty if servers run replicas themselves.
    """
    return await nodes.listed(context.runtime.nodes())
