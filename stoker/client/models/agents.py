# `python -m tools.client_api` writes this file.
"""Responses of agents, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec


class Agent(msgspec.Struct, kw_only=True):
    config: dict[str, Any]
    created_at: str
    id: str
    instructions: str | None
    max_steps: int
    model: str
    name: str
    object: str = "agent"
    tools: list[dict[str, Any]]
    updated_at: str


class DeletedRun(msgspec.Struct, kw_only=True):
    deleted: bool = True
    id: str
    object: str = "agent.run.deleted"


class RequiredFunction(msgspec.Struct, kw_only=True):
    arguments: str
    """JSON."""
    name: str


class RequiredCall(msgspec.Struct, kw_only=True):
    function: RequiredFunction
    id: str
    type: str


class RequiredAction(msgspec.Struct, kw_only=True):
    tool_calls: list[RequiredCall]
    type: str = "submit_tool_outputs"


class RunError(msgspec.Struct, kw_only=True):
    code: str
    message: str


if TYPE_CHECKING:
    RunStatus: TypeAlias = (
        Literal[
            "queued",
            "in_progress",
            "requires_action",
            "cancelling",
            "cancelled",
            "completed",
            "failed",
        ]
        | str
    )
else:
    RunStatus = str


class RunUsage(msgspec.Struct, kw_only=True):
    completion_tokens: int
    microcredits: int
    """Cost of one replica for the duration of the steps, rounded up. Bills are by memory
    held, which concurrent calls share.
    """
    prompt_tokens: int
    seconds: float
    """Working time in steps and tools."""
    steps: int
    total_tokens: int


class Run(msgspec.Struct, kw_only=True):
    agent_id: str
    completed_at: str | None
    """Time when the run ended, with or without success."""
    created_at: str
    error: RunError | None
    finish_reason: str | None
    """Finish reason of the last response: `length` if it was cut off."""
    id: str
    input: str | list[dict[str, Any]]
    model: str
    object: str = "agent.run"
    output: str | None
    """The answer, once the run is completed."""
    required_action: RequiredAction | None
    status: RunStatus
    usage: RunUsage


class RunEvent(msgspec.Struct, kw_only=True):
    created_at: str
    data: dict[str, Any]
    id: str
    """Sequence number, for `after` and `Last-Event-ID`."""
    object: str = "agent.run.event"
    run_id: str
    sequence: int
    type: str
