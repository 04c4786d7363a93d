"""quotas of accounts"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("quotas", sa.JSON(), server_default="{}", nullable=False))
    op.add_column("uploads", sa.Column("declared_bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("uploads", "declared_bytes")
    op.drop_column("accounts", "quotas")
