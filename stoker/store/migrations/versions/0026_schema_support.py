"""releases that may use the schema, and the newest revision that each server and node knows"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

COMPATIBLE_FROM: str | None = "0026"


def upgrade() -> None:
    support = op.create_table(
        "schema_support",
        sa.Column("oldest_revision", sa.String(length=32), nullable=False),
        sa.Column("release", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("oldest_revision", name=op.f("pk_schema_support")),
    )
    op.bulk_insert(support, [{"oldest_revision": revision, "release": ""}])
    for table in ("servers", "nodes"):
        with op.batch_alter_table(table) as batch:
            batch.add_column(
                sa.Column(
                    "schema_revision", sa.String(length=32), nullable=False, server_default=""
                )
            )
