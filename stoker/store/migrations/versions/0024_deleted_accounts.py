"""deletion of accounts: a mark during the deletion, and anonymous sums in the ledger"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("accounts") as table:
        table.add_column(sa.Column("deleting_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("idempotency_records") as table:
        table.add_column(sa.Column("account_id", sa.String(64), nullable=True))
        table.create_index("ix_idempotency_records_account_id", ["account_id"])
    with op.batch_alter_table("transfers") as table:
        table.alter_column("account_id", existing_type=sa.String(40), nullable=True)
