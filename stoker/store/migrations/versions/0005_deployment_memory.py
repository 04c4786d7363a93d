"""memory requirements of deployments"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.add_column(sa.Column("memory_bytes", sa.BigInteger(), nullable=True))
        table.add_column(
            sa.Column("is_measured", sa.Boolean(), nullable=False, server_default=sa.false())
        )


def downgrade() -> None:
    with op.batch_alter_table("deployments") as table:
        table.drop_column("is_measured")
        table.drop_column("memory_bytes")
