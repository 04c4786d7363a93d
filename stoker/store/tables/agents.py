from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.tables.jobs import Job


class RunStatus(StrEnum):
    """A job's, and those that only runs have."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    REQUIRES_ACTION = "requires_action"
    CANCELLING = "cancelling"
    """Never seen: whoever works on a cancelled run has lost it at once, so it is `cancelled`."""
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAILED = "failed"


UNENDED = (
    RunStatus.QUEUED.value,
    RunStatus.IN_PROGRESS.value,
    RunStatus.REQUIRES_ACTION.value,
)
ENDED = (RunStatus.CANCELLED.value, RunStatus.COMPLETED.value, RunStatus.FAILED.value)


class Agent(Base):
    """A deployed chat model with instructions and tools."""

    __tablename__ = "agents"
    __table_args__ = (
        Index("ix_agents_account_id_id", "account_id", "id"),
        Index("ix_agents_stored_bytes", "account_id", "stored_bytes"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    name: Mapped[str] = mapped_column(String(128))
    model: Mapped[str] = mapped_column(String(128))
    instructions: Mapped[str | None] = mapped_column(Text)
    tools: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """As `schemas.stored` leaves them: what is secret of them is sealed."""
    max_steps: Mapped[int]
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """The size of its instructions, tools and configuration, for the account's storage."""


class Run(Job, Base):
    """One task given to an agent. All that was said is sealed with a key of the run's own, here
    and in the events: with this row every copy of it becomes unreadable.
    """

    __tablename__ = "agent_runs"
    __table_args__ = (
        Index("ix_agent_runs_agent_id_id", "agent_id", "id"),
        Index("ix_agent_runs_completed_at", "completed_at"),
        Index("ix_agent_runs_account_id_status", "account_id", "status"),
        Index("ix_agent_runs_stored_bytes", "account_id", "stored_bytes"),
    )

    agent_id: Mapped[str] = mapped_column(String(40), ForeignKey("agents.id"))
    api_key: Mapped[str] = mapped_column(String(32))
    """The public id of the key whose rights and limits its calls have."""
    model: Mapped[str] = mapped_column(String(128))
    content_key: Mapped[bytes] = mapped_column(LargeBinary)
    """See `sealing`."""
    asked: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed: `transcript.Asked`, the input and the agent as it was then."""
    output: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed: the text."""
    waiting_for: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed: the calls of functions whose outputs the run waits for."""
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    steps: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    worked_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    """In steps and tools; not what it waited for a worker of the queue, or for outputs."""
    microcredits: Mapped[int] = mapped_column(BigInteger, default=0)
    carry: Mapped[int] = mapped_column(BigInteger, default=0)
    """What rounding left of the cost, in parts of a micro-credit (`usage.money.PARTS`)."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """The size of what callers gave it: input and outputs of tools, for the account's storage."""

    @property
    def cost(self) -> int:
        """In micro-credits, rounded up."""
        return self.microcredits + (self.carry > 0)


class RunEvent(Base):
    """Something that happened in a run. Never changed; gone with the run."""

    __tablename__ = "agent_run_events"

    run_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("agent_runs.id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True)
    """1, 2, 3, …"""
    type: Mapped[str] = mapped_column(String(32))
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
