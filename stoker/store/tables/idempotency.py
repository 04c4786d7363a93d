from datetime import datetime

from sqlalchemy import LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class IdempotencyRecord(Base):
    __tablename__ = "idempotency_records"

    # SHA-256 of the API key's id, the request and its Idempotency-Key: bounded in length.
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    # Sealed: the first answer to a key's creation contains the key. Empty for a sign-in link.
    response: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    account_id: Mapped[str | None] = mapped_column(String(64), index=True)
    """Account of the request. None for an operator's request without an account."""
    object_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """Created object. The stored response is erased together with it."""
