"""agents"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("idempotency_records") as table:
        table.add_column(sa.Column("object_id", sa.String(length=40), nullable=True))
    op.create_index(op.f("ix_idempotency_records_object_id"), "idempotency_records", ["object_id"])

    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("tools", sa.JSON(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_agents_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
    )
    op.create_index("ix_agents_account_id_id", "agents", ["account_id", "id"])

    op.create_table(
        "agent_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("agent_id", sa.String(length=40), nullable=False),
        sa.Column("api_key", sa.String(length=32), nullable=False),
        sa.Column("deployment_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("content_key", sa.LargeBinary(), nullable=False),
        sa.Column("asked", sa.LargeBinary(), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=True),
        sa.Column("waiting_for", sa.LargeBinary(), nullable=True),
        sa.Column("finish_reason", sa.String(length=16), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("worked_ms", sa.BigInteger(), nullable=False),
        sa.Column("microcredits", sa.BigInteger(), nullable=False),
        sa.Column("carry", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("completed_at", UtcDateTime(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("lock_token", sa.String(length=32), nullable=True),
        sa.Column("lock_expires_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_agent_runs_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_agent_runs_agent_id_agents")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_runs")),
    )
    op.create_index("ix_agent_runs_agent_id_id", "agent_runs", ["agent_id", "id"])
    op.create_index("ix_agent_runs_completed_at", "agent_runs", ["completed_at"])
    op.create_index("ix_agent_runs_account_id_status", "agent_runs", ["account_id", "status"])
    op.create_index(op.f("ix_agent_runs_deployment_id"), "agent_runs", ["deployment_id"])
    op.create_index(op.f("ix_agent_runs_status"), "agent_runs", ["status"])

    op.create_table(
        "agent_run_events",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["agent_runs.id"],
            name=op.f("fk_agent_run_events_run_id_agent_runs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "sequence", name=op.f("pk_agent_run_events")),
    )


def downgrade() -> None:
    op.drop_table("agent_run_events")
    op.drop_table("agent_runs")
    op.drop_table("agents")
    op.drop_index(op.f("ix_idempotency_records_object_id"), "idempotency_records")
    with op.batch_alter_table("idempotency_records") as table:
        table.drop_column("object_id")
