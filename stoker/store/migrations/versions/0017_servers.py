"""several servers on one database"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

TABLES = ("servers", "shared_secrets", "revisions", "deployment_changes", "rate_levels")


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("loaded", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_servers")),
    )
    op.create_table(
        "shared_secrets",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_shared_secrets")),
    )
    revisions = op.create_table(
        "revisions",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_revisions")),
    )
    op.bulk_insert(revisions, [{"name": "deployments", "value": 0}])
    op.create_table(
        "deployment_changes",
        sa.Column("deployment_id", sa.String(length=40), nullable=False),
        sa.Column("server_id", sa.String(length=40), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("deployment_id", "server_id", name=op.f("pk_deployment_changes")),
    )
    op.create_index(op.f("ix_deployment_changes_revision"), "deployment_changes", ["revision"])
    op.create_table(
        "rate_levels",
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("counted_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "what", name=op.f("pk_rate_levels")),
    )
    op.add_column("uploads", sa.Column("server_id", sa.String(length=40), nullable=True))


def downgrade() -> None:
    op.drop_column("uploads", "server_id")
    for table in TABLES:
        op.drop_table(table)
