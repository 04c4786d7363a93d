from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Kind(StrEnum):
    MEMORY = "memory"
    STORAGE = "storage"


class Holding(Base):
    """What one worker held of memory, or one artifact of storage, during one hour.

    Nothing refers to a deployment or an artifact: history outlives them.
    """

    __tablename__ = "holdings"
    __table_args__ = (
        UniqueConstraint("subject_id", "hour", name="uq_holdings_subject_hour"),
        Index("ix_holdings_account_id_hour", "account_id", "hour"),
        Index("ix_holdings_account_id_id", "account_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    subject_id: Mapped[str] = mapped_column(String(40))
    """The worker or the artifact."""
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_id: Mapped[str | None] = mapped_column(String(40))
    version_id: Mapped[str | None] = mapped_column(String(40))
    """Of which version the worker was; None: of none, or from before that was noted."""
    name: Mapped[str] = mapped_column(String(128))
    """The model's or the artifact's, as it was then."""
    hour: Mapped[int]
    """Whole hours since 1970 in UTC."""
    started_ms: Mapped[int] = mapped_column(BigInteger)
    """Since 1970 in UTC."""
    ended_ms: Mapped[int] = mapped_column(BigInteger)
    mib_ms: Mapped[int] = mapped_column(BigInteger)
    peak_mib: Mapped[int] = mapped_column(BigInteger)
    price_version: Mapped[int]
    is_final: Mapped[bool]
    """Nothing more is expected of it."""
    charged_mib_ms: Mapped[int] = mapped_column(BigInteger)
    charged_microcredits: Mapped[int] = mapped_column(BigInteger)
    is_settled: Mapped[bool] = mapped_column(index=True)
    """Final and charged: found by its index, what is not settled is little."""

    def settle(self) -> None:
        self.is_settled = self.is_final and self.charged_mib_ms == self.mib_ms


class UsageCount(Base):
    """What one server counted during one hour of a key's calls of a deployment's version."""

    __tablename__ = "usage_counts"
    __table_args__ = (
        Index("ix_usage_counts_account_id_hour", "account_id", "hour"),
        Index("ix_usage_counts_account_id_id", "account_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_id: Mapped[str] = mapped_column(String(40))
    version_id: Mapped[str | None] = mapped_column(String(40))
    """None: the deployment has none of its own, or it is from before that was noted."""
    key_id: Mapped[str | None] = mapped_column(String(40))
    """None: the server itself has called, or it is from before that was noted."""
    model: Mapped[str] = mapped_column(String(128))
    hour: Mapped[int]
    requests: Mapped[int] = mapped_column(BigInteger)
    errors: Mapped[int] = mapped_column(BigInteger)
    mirrored: Mapped[int] = mapped_column(BigInteger, default=0)
    """Of the requests, copies for which nobody waited."""
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    images: Mapped[int] = mapped_column(BigInteger)
    audio_ms: Mapped[int] = mapped_column(BigInteger)
    video_ms: Mapped[int] = mapped_column(BigInteger)


class Price(Base):
    """A version of the price list; never changed."""

    __tablename__ = "prices"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    version: Mapped[int] = mapped_column(unique=True)
    memory: Mapped[int] = mapped_column(BigInteger)
    """Micro-credits per GiB-hour."""
    storage: Mapped[int] = mapped_column(BigInteger)
    """Micro-credits per GiB-month, of 30 days."""
    hour: Mapped[int]
    """Applies from this hour on."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TransferKind(StrEnum):
    OPENING = "opening"
    GRANT = "grant"
    CORRECTION = "correction"
    MEMORY = "memory"
    STORAGE = "storage"


class Transfer(Base):
    """A movement of credit between two books; only ever added."""

    __tablename__ = "transfers"
    __table_args__ = (Index("ix_transfers_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[str] = mapped_column(String(128), unique=True)
    """What is moved: the same is never moved twice."""
    kind: Mapped[str] = mapped_column(String(16))
    source: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(64))
    microcredits: Mapped[int] = mapped_column(BigInteger)
    """Above zero."""
    account_id: Mapped[str | None] = mapped_column(String(40), ForeignKey("accounts.id"))
    """None: the sum of the transfers of an account that was deleted."""
    holding_id: Mapped[str | None] = mapped_column(String(40))
    note: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Book(Base):
    """The sum of all transfers into a book less those out of it, kept with each of them."""

    __tablename__ = "books"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    account_id: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("accounts.id"), unique=True
    )
    microcredits: Mapped[int] = mapped_column(BigInteger)
    carry: Mapped[int] = mapped_column(BigInteger)
    """What rounding has left uncharged, in parts of a micro-credit (`money.PARTS`)."""
