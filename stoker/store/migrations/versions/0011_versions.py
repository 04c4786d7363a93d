"""versions of deployments"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "deployments", sa.Column("keep_s", sa.Float(), nullable=False, server_default="600")
    )
    op.add_column(
        "deployments",
        sa.Column("live_version_id", sa.String(length=40), nullable=False, server_default=""),
    )
    op.add_column("deployments", sa.Column("traffic", sa.JSON(), nullable=True))
    op.add_column("deployment_events", sa.Column("version_id", sa.String(length=40), nullable=True))
    op.create_table(
        "deployment_versions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("deployment_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("artifact_id", sa.String(length=40), nullable=True),
        sa.Column("upload_id", sa.String(length=40), nullable=True),
        sa.Column("source", sa.String(length=1024), nullable=True),
        sa.Column("engine", sa.String(length=32), nullable=False),
        sa.Column("device", sa.String(length=16), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("is_measured", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("note", sa.String(length=1024), nullable=False),
        sa.Column("promote", sa.String(length=16), nullable=False),
        sa.Column("strategy", sa.String(length=16), nullable=False),
        sa.Column("promoted_at", UtcDateTime(), nullable=True),
        sa.Column("retired_at", UtcDateTime(), nullable=True),
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
            ["account_id"], ["accounts.id"], name=op.f("fk_deployment_versions_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["artifact_id"],
            ["artifacts.id"],
            name=op.f("fk_deployment_versions_artifact_id_artifacts"),
        ),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployments.id"],
            name=op.f("fk_deployment_versions_deployment_id_deployments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployment_versions")),
        sa.UniqueConstraint("deployment_id", "number", name="uq_deployment_versions_number"),
    )
    for column in ("artifact_id", "status"):
        op.create_index(op.f(f"ix_deployment_versions_{column}"), "deployment_versions", [column])
    # The current configuration of each deployment becomes its first version.
    op.execute("UPDATE deployments SET live_version_id = 'ver_' || substr(id, 5)")
    op.execute(
        """
        INSERT INTO deployment_versions (
            id, account_id, deployment_id, number,
            artifact_id, upload_id, source, engine, device, dtype, config, memory_bytes,
            is_measured, state, reason, message, note, promote, strategy, promoted_at,
            status, progress, created_at, completed_at, tries, losses
        )
        SELECT
            live_version_id, account_id, id, 1,
            artifact_id, upload_id, source, engine, device, dtype, config, memory_bytes,
            is_measured, 'live', '', '', '', 'when_ready', 'beside', created_at,
            'completed', 1, created_at, created_at, 0, 0
        FROM deployments
        """
    )


def downgrade() -> None:
    op.drop_table("deployment_versions")
    op.drop_column("deployment_events", "version_id")
    for column in ("traffic", "live_version_id", "keep_s"):
        op.drop_column("deployments", column)
