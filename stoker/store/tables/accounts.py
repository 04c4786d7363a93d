from datetime import datetime
from typing import Any

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Account(Base):
    __tablename__ = "accounts"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    quotas: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict, server_default="{}")
    """Limits set by the operator. Maps a `quotas.limits.Quota` to its limit; 0 allows none."""
    deleting_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Start of the account's deletion, which ends with this row. None if no deletion was
    requested.
    """
