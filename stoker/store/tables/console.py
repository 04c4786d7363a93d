from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class ConsoleSession(Base):
    """A browser that signed in with a key and has the key's rights."""

    __tablename__ = "console_sessions"

    token_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    key_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("api_keys.id", ondelete="CASCADE"), index=True
    )
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    """Digest of the secret used to sign in. The session ends when this secret ends."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class ConsoleLink(Base):
    """A link that signs a browser in once, with the key that requested it."""

    __tablename__ = "console_links"

    token_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    key_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("api_keys.id", ondelete="CASCADE"), index=True
    )
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
