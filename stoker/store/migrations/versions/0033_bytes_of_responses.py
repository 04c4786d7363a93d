"""index of the bytes of stored responses"""

from collections.abc import Sequence

from alembic import op

revision: str = "0033"
down_revision: str | None = "0032"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

COMPATIBLE_FROM: str | None = None


def upgrade() -> None:
    # Sums are read from the index, because rows are large.
    with op.get_context().autocommit_block():
        op.create_index(
            "ix_responses_stored_bytes",
            "responses",
            ["account_id", "stored_bytes", "event_bytes"],
            postgresql_concurrently=True,
        )
