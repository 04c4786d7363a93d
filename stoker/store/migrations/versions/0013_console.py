"""signed-in browsers, and the links that sign them in"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

TABLES = ("console_sessions", "console_links")


def upgrade() -> None:
    for table in TABLES:
        op.create_table(
            table,
            sa.Column("token_sha256", sa.LargeBinary(length=32), nullable=False),
            sa.Column("key_id", sa.String(length=40), nullable=False),
            sa.Column("secret_sha256", sa.LargeBinary(length=32), nullable=False),
            sa.Column("created_at", UtcDateTime(), nullable=False),
            sa.Column("expires_at", UtcDateTime(), nullable=False),
            sa.ForeignKeyConstraint(
                ["key_id"],
                ["api_keys.id"],
                name=op.f(f"fk_{table}_key_id_api_keys"),
                ondelete="CASCADE",
            ),
            sa.PrimaryKeyConstraint("token_sha256", name=op.f(f"pk_{table}")),
        )
        for column in ("key_id", "expires_at"):
            op.create_index(op.f(f"ix_{table}_{column}"), table, [column])


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
