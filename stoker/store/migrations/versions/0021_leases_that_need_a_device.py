"""leases that require a node with a graphics device"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("leases") as table:
        table.add_column(
            sa.Column("needs_device", sa.Boolean(), nullable=False, server_default=sa.false())
        )
