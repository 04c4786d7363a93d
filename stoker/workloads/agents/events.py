"""Types of the events of a run."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stoker.store.tables.agents import RunStatus

CREATED = "run.created"
RESUMED = "run.resumed"
REQUIRES_ACTION = "run.requires_action"
TOOLS_LISTED = "tools.listed"
STEP_STARTED = "step.started"
MESSAGE_DELTA = "message.delta"
REASONING_DELTA = "reasoning.delta"
MESSAGE_COMPLETED = "message.completed"
CALL_STARTED = "tool_call.started"
CALL_COMPLETED = "tool_call.completed"
COMPLETED = f"run.{RunStatus.COMPLETED}"
FAILED = f"run.{RunStatus.FAILED}"
CANCELLED = f"run.{RunStatus.CANCELLED}"
LAST = frozenset({COMPLETED, FAILED, CANCELLED})
"""Final event types. No event follows one of these."""
DELETED = "run.deleted"
"""Sent to followers only. It is never stored."""
DELTAS = (MESSAGE_DELTA, REASONING_DELTA)


@dataclass(frozen=True)
class JournalEvent:
    sequence: int
    type: str
    data: dict[str, Any]
    created_at: datetime
