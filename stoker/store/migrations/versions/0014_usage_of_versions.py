"""usage by version, copies sent to mirrors, and comparisons of versions' answers"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("holdings", sa.Column("version_id", sa.String(length=40), nullable=True))
    op.add_column("usage_counts", sa.Column("version_id", sa.String(length=40), nullable=True))
    op.add_column(
        "usage_counts",
        sa.Column("mirrored", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.create_table(
        "version_comparisons",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("version_id", sa.String(length=40), nullable=False),
        sa.Column("live_version_id", sa.String(length=40), nullable=False),
        sa.Column("tally", sa.JSON(), nullable=False),
        sa.Column("examples", sa.LargeBinary(), nullable=True),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["deployment_versions.id"],
            name=op.f("fk_version_comparisons_version_id_deployment_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_version_comparisons")),
    )
    op.create_index(
        op.f("ix_version_comparisons_version_id"), "version_comparisons", ["version_id"]
    )


def downgrade() -> None:
    op.drop_table("version_comparisons")
    op.drop_column("usage_counts", "mirrored")
    op.drop_column("usage_counts", "version_id")
    op.drop_column("holdings", "version_id")
