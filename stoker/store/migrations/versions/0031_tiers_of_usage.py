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
    with op.batch_alter_table("prices") as batch:
        batch.add_column(sa.Column("flex", sa.BigInteger(), nullable=True))
    # A new database starts with the usual price of background work: half of the price of memory.
    # The prices of a database in use never change, and its rows must not be locked.
    if op.get_bind().scalar(sa.text("SELECT count(*) FROM accounts")) == 0:
        op.execute("UPDATE prices SET flex = memory / 2")
