"""calls counted per API key"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("usage_counts", sa.Column("key_id", sa.String(length=40), nullable=True))


def downgrade() -> None:
    op.drop_column("usage_counts", "key_id")
