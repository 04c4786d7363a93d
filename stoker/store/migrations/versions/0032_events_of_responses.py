"""events of background responses"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0032"
down_revision: str | None = "0031"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

COMPATIBLE_FROM: str | None = None


def upgrade() -> None:
    op.create_table(
        "response_events",
        sa.Column("response_id", sa.String(length=40), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.Column("events", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name=op.f("fk_response_events_response_id_responses"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("response_id", "last", name=op.f("pk_response_events")),
    )
    with op.batch_alter_table("responses") as batch:
        batch.add_column(
            sa.Column("is_followed", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch.add_column(
            sa.Column("event_bytes", sa.BigInteger(), nullable=False, server_default="0")
        )
