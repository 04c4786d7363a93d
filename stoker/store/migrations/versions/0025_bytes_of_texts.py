"""checks, agents and inputs of runs count for the storage of their account"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLES = {
    "agents": ("account_id", "coalesce(length(instructions), 0) + length(cast(tools AS TEXT))"),
    "agent_runs": ("account_id", "length(asked)"),
    "deployment_checks": (
        "deployment_id",
        "length(cast(checks AS TEXT)) + coalesce(length(cast(report AS TEXT)), 0)",
    ),
}


def upgrade() -> None:
    for name, (owner, size) in _TABLES.items():
        with op.batch_alter_table(name) as table:
            column = sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0")
            table.add_column(column)
        op.execute(f"UPDATE {name} SET stored_bytes = {size}")  # noqa: S608
        # Sums are read from the index, because rows are large.
        op.create_index(f"ix_{name}_stored_bytes", name, [owner, "stored_bytes"])
