"""files that clients upload, whole or in parts"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0027"
down_revision: str | None = "0026"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

# Older releases ignore the new columns and tables. They show files that never expire with a date
# in the year 9999.
COMPATIBLE_FROM: str | None = None


def upgrade() -> None:
    with op.batch_alter_table("files") as table:
        table.add_column(sa.Column("key_id", sa.String(40), nullable=True))
        table.add_column(sa.Column("filename", sa.String(255), nullable=True))
    op.create_table(
        "file_uploads",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("content_type", sa.String(64), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("keep_s", sa.Integer(), nullable=True),
        sa.Column("file_id", sa.String(40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["accounts.id"],
            name=op.f("fk_file_uploads_account_id_accounts"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file_uploads")),
    )
    for column in ("account_id", "expires_at"):
        op.create_index(op.f(f"ix_file_uploads_{column}"), "file_uploads", [column])
    op.create_table(
        "file_upload_parts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("upload_id", sa.String(40), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"],
            ["file_uploads.id"],
            name=op.f("fk_file_upload_parts_upload_id_file_uploads"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file_upload_parts")),
    )
    op.create_index(op.f("ix_file_upload_parts_upload_id"), "file_upload_parts", ["upload_id"])
