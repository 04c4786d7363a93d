"""usage, prices and the ledger"""

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from stoker.store.db import UtcDateTime

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

DEFAULT_PRICE = 1_000_000
"""Price in micro-credits: one credit buys a GiB of memory for an hour, or of storage for a
month.
"""


def upgrade() -> None:
    op.create_table(
        "holdings",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("subject_id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("deployment_id", sa.String(length=40), nullable=True),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.Column("mib_ms", sa.BigInteger(), nullable=False),
        sa.Column("peak_mib", sa.BigInteger(), nullable=False),
        sa.Column("price_version", sa.Integer(), nullable=False),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.Column("charged_mib_ms", sa.BigInteger(), nullable=False),
        sa.Column("charged_microcredits", sa.BigInteger(), nullable=False),
        sa.Column("is_settled", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_holdings_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holdings")),
        sa.UniqueConstraint("subject_id", "hour", name="uq_holdings_subject_hour"),
    )
    op.create_index("ix_holdings_account_id_hour", "holdings", ["account_id", "hour"])
    op.create_index("ix_holdings_account_id_id", "holdings", ["account_id", "id"])
    op.create_index(op.f("ix_holdings_is_settled"), "holdings", ["is_settled"])

    op.create_table(
        "usage_counts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("deployment_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("images", sa.BigInteger(), nullable=False),
        sa.Column("audio_ms", sa.BigInteger(), nullable=False),
        sa.Column("video_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_usage_counts_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_counts")),
    )
    op.create_index("ix_usage_counts_account_id_hour", "usage_counts", ["account_id", "hour"])
    op.create_index("ix_usage_counts_account_id_id", "usage_counts", ["account_id", "id"])

    prices = op.create_table(
        "prices",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("memory", sa.BigInteger(), nullable=False),
        sa.Column("storage", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prices")),
        sa.UniqueConstraint("version", name=op.f("uq_prices_version")),
    )

    op.create_table(
        "transfers",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("microcredits", sa.BigInteger(), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=False),
        sa.Column("holding_id", sa.String(length=40), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_transfers_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transfers")),
        sa.UniqueConstraint("key", name=op.f("uq_transfers_key")),
    )
    op.create_index("ix_transfers_account_id_id", "transfers", ["account_id", "id"])

    books = op.create_table(
        "books",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("account_id", sa.String(length=40), nullable=True),
        sa.Column("microcredits", sa.BigInteger(), nullable=False),
        sa.Column("carry", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_books_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_books")),
        sa.UniqueConstraint("account_id", name=op.f("uq_books_account_id")),
    )

    now = datetime.now(UTC)
    first = {"id": f"price_{'0' * 26}", "version": 1, "hour": int(now.timestamp()) // 3600}
    op.bulk_insert(
        prices, [{**first, "memory": DEFAULT_PRICE, "storage": DEFAULT_PRICE, "created_at": now}]
    )
    # Every writer to the ledger locks this row.
    op.bulk_insert(books, [{"name": "operator:memory", "microcredits": 0, "carry": 0}])


def downgrade() -> None:
    for table in ("books", "transfers", "prices", "usage_counts", "holdings"):
        op.drop_table(table)
