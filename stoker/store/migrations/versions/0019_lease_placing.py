"""leases that a separate placer assigns to nodes"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("leases") as table:
        table.alter_column("node_id", existing_type=sa.String(length=40), nullable=True)
        table.add_column(
            sa.Column("memory_bytes", sa.BigInteger(), nullable=False, server_default="0")
        )
        table.add_column(sa.Column("prefers", sa.String(length=40), nullable=True))
        table.add_column(
            sa.Column("may_evict", sa.Boolean(), nullable=False, server_default=sa.true())
        )
        table.add_column(
            sa.Column("is_kept", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        table.add_column(sa.Column("idle_at", UtcDateTime(), nullable=True))
        table.add_column(sa.Column("problem", sa.Text(), nullable=True))
