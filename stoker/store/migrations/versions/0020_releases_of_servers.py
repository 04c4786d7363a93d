"""release of each server

Servers of older releases do not write these columns and leave them empty.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("servers") as table:
        for name, length in (("host", 63), ("version", 40), ("python", 40)):
            table.add_column(
                sa.Column(name, sa.String(length=length), nullable=False, server_default="")
            )
