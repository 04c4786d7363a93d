"""Business rules of agents."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stoker.base.errors import InternalError, InvalidMediaError, InvalidRequestError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.inference.openai.response_formats import format_guide
from stoker.media.fetch import checked_url
from stoker.models.tasks.registry import GENERATING
from stoker.platform.quotas.limits import Quota
from stoker.platform.web.principal import Principal, Scope
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.agents import Agent
from stoker.wire import schema_limits as limits
from stoker.workloads.agents import repository, schemas
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.transcript import McpServer


async def create(
    session: Session,
    context: AgentContext,
    account_id: str,
    caller: Principal,
    body: schemas.AgentCreate,
) -> Agent:
    """Creates an agent.

    Raises `ModelNotFoundError`, `EndpointNotSupportedError`, `InvalidRequestError`, and
    `RateLimitError` if the account has reached its limit.
    """
    await check_model(context, account_id, caller, body.model)
    await context.quotas.take(session, account_id, Quota.AGENTS)
    now = db.now()
    row = Agent(
        id=new_id(Prefix.AGENT),
        account_id=account_id,
        name=body.name,
        model=body.model,
        instructions=body.instructions,
        tools=_stored(context, body.tools),
        max_steps=body.max_steps,
        config=_config(body.config),
        created_at=now,
        updated_at=now,
    )
    await _count(session, context, row)
    session.add(row)
    return row


async def update(
    session: Session,
    context: AgentContext,
    caller: Principal,
    row: Agent,
    body: schemas.AgentUpdate,
) -> None:
    """Updates an agent. Existing runs continue with the agent as it was. Raises the errors of
    `create`.
    """
    for name in body.model_fields_set:
        value: Any = getattr(body, name)
        if name == "model":
            await check_model(context, row.account_id, caller, value)
        elif name == "tools":
            value = _stored(context, value)
        elif name == "config":
            value = _config(value)
        setattr(row, name, value)
    await _count(session, context, row)
    row.updated_at = db.now()


async def _count(session: Session, context: AgentContext, row: Agent) -> None:
    """Charges an agent to its account's storage quota. Raises `PayloadTooLargeError`."""
    size = len(msgspec.json.encode([row.instructions, row.tools, row.config]))
    more = size - (row.stored_bytes or 0)
    await context.quotas.take(session, row.account_id, Quota.STORAGE_BYTES, more)
    row.stored_bytes = size


async def check_model(context: AgentContext, account_id: str, caller: Principal, model: str) -> str:
    """Returns the id of the chat model's deployment. Raises the errors of the chat endpoint."""
    account = replace(caller, scope=Scope.ACCOUNT, account_id=account_id)
    entry = await context.calls.target(account, model, GENERATING)
    return entry.deployment_id


async def get(session: Session, account_id: str, agent_id: str, *, lock: bool = False) -> Agent:
    row = await repository.agent(session, account_id, agent_id, lock=lock)
    if row is None:
        raise NotFoundError("Agent not found", code="agent_not_found")
    return row


def response(row: Agent) -> schemas.Agent:
    return schemas.Agent(
        id=row.id,
        name=row.name,
        model=row.model,
        instructions=row.instructions,
        tools=[_shown(tool) for tool in row.tools],
        max_steps=row.max_steps,
        config=row.config,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _config(config: schemas.AgentConfig) -> dict[str, Any]:
    """Raises `InvalidRequestError` that names the field."""
    guide = format_guide(config.response_format)
    if guide and guide.kind == "json_schema":
        _check_schema(guide.value, f"config.{guide.field}")
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def _stored(context: AgentContext, tools: Sequence[schemas.Tool]) -> list[dict[str, Any]]:
    """Returns tools in their stored form. Raises `InvalidRequestError` that names the field."""
    names: set[str] = set()
    rows: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        if isinstance(tool, schemas.AgentFunctionTool):
            name, field = tool.function.name, f"tools[{index}].function.name"
            _check_schema(tool.function.parameters, f"tools[{index}].function.parameters")
        else:
            name, field = f"mcp {tool.server_label}", f"tools[{index}].server_label"
            _check_url(tool.server_url, f"tools[{index}].server_url")
        if name in names:
            raise InvalidRequestError(f"'{field}' is already used by another tool.", param=field)
        names.add(name)
        stored = tool.model_dump(mode="json", exclude_none=True)
        if isinstance(tool, schemas.McpTool):
            secret = msgspec.json.encode(stored.pop("headers"))
            stored["sealed_headers"] = base64.b64encode(context.secret.seal(secret)).decode()
            stored["header_names"] = list(tool.headers)
        rows.append(stored)
    return rows


def _check_schema(schema: dict[str, Any] | None, field: str) -> None:
    if problem := limits.excess(schema or {}):
        raise InvalidRequestError(f"'{field}' {problem}.", param=field)


def _check_url(url: str, field: str) -> None:
    try:
        checked_url(url)
    except InvalidMediaError as error:
        raise InvalidRequestError(
            f"'{field}' must be an http or https URL without user name, password or spaces.",
            param=field,
        ) from error


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] != "mcp":
        return tool
    visible = {name: tool[name] for name in tool if name not in ("sealed_headers", "header_names")}
    return visible | {"headers": dict.fromkeys(tool["header_names"], schemas.HIDDEN)}


def server_of(context: AgentContext, tool: dict[str, Any]) -> McpServer:
    """Returns a tool server with its secrets. Raises `InternalError` if another secret sealed
    them.
    """
    opened = context.secret.unseal(base64.b64decode(tool["sealed_headers"]))
    if opened is None:
        raise InternalError("This agent's headers were encrypted by a server with another secret.")
    return McpServer(
        label=tool["server_label"],
        url=tool["server_url"],
        headers=msgspec.json.decode(opened),
        allowed_tools=tool.get("allowed_tools"),
    )
