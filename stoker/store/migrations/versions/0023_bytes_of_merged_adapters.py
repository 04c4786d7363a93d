"""folders of merged adapters count for the storage of their account"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("deployment_versions") as table:
        table.add_column(sa.Column("merged_bytes", sa.BigInteger(), nullable=True))
