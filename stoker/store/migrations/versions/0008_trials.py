"""trials of engines and precisions"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("deployment_id", sa.String(length=40), nullable=False),
        sa.Column("examples", sa.JSON(), nullable=True),
        sa.Column("example_count", sa.Integer(), nullable=True),
        sa.Column("engines", sa.JSON(), nullable=True),
        sa.Column("dtypes", sa.JSON(), nullable=True),
        sa.Column("rows", sa.JSON(), nullable=False),
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
            ["account_id"], ["accounts.id"], name=op.f("fk_trials_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployments.id"],
            name=op.f("fk_trials_deployment_id_deployments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
    )
    op.create_index(op.f("ix_trials_deployment_id_id"), "trials", ["deployment_id", "id"])
    op.create_index(op.f("ix_trials_status"), "trials", ["status"])


def downgrade() -> None:
    op.drop_table("trials")
