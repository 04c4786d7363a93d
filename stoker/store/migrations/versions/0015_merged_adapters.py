"""adapters that are merged into separate replicas"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("deployments", sa.Column("merged_because", sa.Text(), nullable=True))
    for table in ("deployments", "deployment_versions"):
        op.add_column(table, sa.Column("base_source", sa.String(length=1100), nullable=True))


def downgrade() -> None:
    for table in ("deployment_versions", "deployments"):
        op.drop_column(table, "base_source")
    op.drop_column("deployments", "merged_because")
