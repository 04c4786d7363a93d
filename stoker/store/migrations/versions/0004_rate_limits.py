"""rate limits of API keys"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("requests_per_minute", sa.Integer(), nullable=True))
    op.add_column("api_keys", sa.Column("tokens_per_minute", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("api_keys", "tokens_per_minute")
    op.drop_column("api_keys", "requests_per_minute")
