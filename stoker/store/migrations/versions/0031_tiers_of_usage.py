"""service tiers of usage"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0031"
down_revision: str | None = "0030"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

COMPATIBLE_FROM: str | None = None


def upgrade() -> None:
    with op.batch_alter_table("usage_counts") as batch:
        batch.add_column(sa.Column("tier", sa.String(16), nullable=True))
