from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.open_enum import OpenEnum
from stoker.store.tables.jobs import Job


class RunStatus(OpenEnum):
    """Statuses of a job, and statuses that only runs have."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    REQUIRES_ACTION = "requires_action"
    CANCELLING = "cancelling"
    """Never visible: a cancelled run loses its worker immediately, so its status is `cancelled`."""
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
    """Tools as stored by `schemas.stored`. Their secrets are sealed."""
    max_steps: Mapped[int]
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Size of instructions, tools and configuration, for the account's storage."""


class Run(Job, Base):
    """A task of an agent. All content here and in the events is sealed with the run's own key. When
    this row is deleted, every copy of the content becomes unreadable.
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
    """Public id of the key that defines the rights and limits of the run's calls."""
    model: Mapped[str] = mapped_column(String(128))
    content_key: Mapped[bytes] = mapped_column(LargeBinary)
    """Key of the run's content: see `sealing`."""
    asked: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed `transcript.Asked`: the input and the agent at that time."""
    output: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed text of the output."""
    waiting_for: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed calls of functions with outputs that the run waits for."""
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    steps: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    worked_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    """Milliseconds spent in steps and tools. Excludes waits for a worker of the queue and for
    outputs.
    """
    microcredits: Mapped[int] = mapped_column(BigInteger, default=0)
    carry: Mapped[int] = mapped_column(BigInteger, default=0)
    """Part of the cost below a micro-credit, in `usage.money.PARTS`."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Size of the callers' data, input and outputs of tools, for the account's storage."""

    @property
    def cost(self) -> int:
        """Cost in micro-credits, rounded up."""
        return self.microcredits + (self.carry > 0)


class RunEvent(Base):
    """An event of a run. It never changes and is deleted with the run."""

    __tablename__ = "agent_run_events"

    run_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("agent_runs.id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True)
    """Number of the event: 1, 2, 3, …"""
    type: Mapped[str] = mapped_column(String(32))
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed content."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
