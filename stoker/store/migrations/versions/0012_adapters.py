"""adapters, which share the replicas of another deployment"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    # Does not rebuild the table, as alembic's batches do on SQLite: rows that refer to it would be
    # deleted with the old table.
    op.execute(
        "ALTER TABLE deployments ADD COLUMN adapter_of VARCHAR(40) "
        "CONSTRAINT fk_deployments_adapter_of_deployments REFERENCES deployments (id)"
    )
    op.add_column(
        "deployments",
        sa.Column("has_adapters", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index(op.f("ix_deployments_adapter_of"), "deployments", ["adapter_of"])


def downgrade() -> None:
    op.drop_index(op.f("ix_deployments_adapter_of"), "deployments")
    op.drop_column("deployments", "has_adapters")
    op.drop_column("deployments", "adapter_of")
