from datetime import datetime

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, false
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class ApiKey(Base):
    __tablename__ = "api_keys"
    __table_args__ = (Index("ix_api_keys_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    public_id: Mapped[str] = mapped_column(String(32), unique=True)
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    previous_sha256: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    previous_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    scope: Mapped[str] = mapped_column(String(16))
    account_id: Mapped[str | None] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_ids: Mapped[list[str]] = mapped_column(JSON, default=list)
    name: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    """Maximum tokens per minute. None means no limit."""
    may_prioritize: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True if its calls may use the service tier `priority`."""
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
