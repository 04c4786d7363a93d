from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.open_enum import OpenEnum

FLEX_SUFFIX = ".flex"
"""End of the subject of a holding at the price of background work. A worker may have two holdings
in one hour.
"""


class Kind(OpenEnum):
    MEMORY = "memory"
    FLEX = "flex"
    """Memory of replicas while it costs the price of background work."""
    STORAGE = "storage"


MEMORY_KINDS = (Kind.MEMORY, Kind.FLEX)


class Holding(Base):
    """Memory use of one worker, or storage use of one artifact, during one hour.

    It has no foreign key to a deployment or an artifact, because history outlives them.
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
    """Id of the worker or artifact. Of `Kind.FLEX`, the worker's id with `FLEX_SUFFIX`."""
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_id: Mapped[str | None] = mapped_column(String(40))
    version_id: Mapped[str | None] = mapped_column(String(40))
    """Version of the worker. None if it has no version, or for rows from before versions were
    recorded.
    """
    name: Mapped[str] = mapped_column(String(128))
    """Name of the model or artifact at that time."""
    hour: Mapped[int]
    """Whole hours since 1970 in UTC."""
    started_ms: Mapped[int] = mapped_column(BigInteger)
    """Milliseconds since 1970 in UTC."""
    ended_ms: Mapped[int] = mapped_column(BigInteger)
    mib_ms: Mapped[int] = mapped_column(BigInteger)
    peak_mib: Mapped[int] = mapped_column(BigInteger)
    price_version: Mapped[int]
    is_final: Mapped[bool]
    """True if no more usage is expected."""
    charged_mib_ms: Mapped[int] = mapped_column(BigInteger)
    charged_microcredits: Mapped[int] = mapped_column(BigInteger)
    is_settled: Mapped[bool] = mapped_column(index=True)
    """True if final and charged. The index on it finds the few rows that are not."""

    def settle(self) -> None:
        self.is_settled = self.is_final and self.charged_mib_ms == self.mib_ms


class UsageCount(Base):
    """Counts by one server of a key's calls to a version of a deployment in a tier during one
    hour.
    """

    __tablename__ = "usage_counts"
    __table_args__ = (
        Index("ix_usage_counts_account_id_hour", "account_id", "hour"),
        Index("ix_usage_counts_account_id_id", "account_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_id: Mapped[str] = mapped_column(String(40))
    version_id: Mapped[str | None] = mapped_column(String(40))
    """Version of the calls. None if the deployment has no own version, or for rows from before
    versions were recorded.
    """
    key_id: Mapped[str | None] = mapped_column(String(40))
    """Key of the calls. None for calls by the server itself, or for rows from before keys were
    recorded.
    """
    tier: Mapped[str | None] = mapped_column(String(16))
    """Service tier of the calls. None for rows from before tiers were recorded."""
    model: Mapped[str] = mapped_column(String(128))
    hour: Mapped[int]
    requests: Mapped[int] = mapped_column(BigInteger)
    errors: Mapped[int] = mapped_column(BigInteger)
    mirrored: Mapped[int] = mapped_column(BigInteger, default=0)
    """Number of requests that were mirrored copies, for which no caller waited."""
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    images: Mapped[int] = mapped_column(BigInteger)
    audio_ms: Mapped[int] = mapped_column(BigInteger)
    video_ms: Mapped[int] = mapped_column(BigInteger)


class Price(Base):
    """A version of the price list. It never changes."""

    __tablename__ = "prices"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    version: Mapped[int] = mapped_column(unique=True)
    memory: Mapped[int] = mapped_column(BigInteger)
    """Price of memory in micro-credits per GiB-hour."""
    flex: Mapped[int | None] = mapped_column(BigInteger)
    """Price of memory during background work. None in versions from before it was stored: the
    price of memory.
    """
    storage: Mapped[int] = mapped_column(BigInteger)
    """Price of storage in micro-credits per GiB-month of 30 days."""
    hour: Mapped[int]
    """First hour in which the price applies."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TransferKind(OpenEnum):
    """Kind of a transfer. Charges have the kinds of their holdings."""

    OPENING = "opening"
    GRANT = "grant"
    CORRECTION = "correction"
    MEMORY = "memory"
    FLEX = "flex"
    STORAGE = "storage"


class Transfer(Base):
    """A transfer of credit between two books. Transfers are never changed or deleted."""

    __tablename__ = "transfers"
    __table_args__ = (Index("ix_transfers_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[str] = mapped_column(String(128), unique=True)
    """Unique key of the transfer, so that nothing is transferred twice."""
    kind: Mapped[str] = mapped_column(String(16))
    source: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(64))
    microcredits: Mapped[int] = mapped_column(BigInteger)
    """Amount, greater than zero."""
    account_id: Mapped[str | None] = mapped_column(String(40), ForeignKey("accounts.id"))
    """Account of the transfer. None for the sum of the transfers of a deleted account."""
    holding_id: Mapped[str | None] = mapped_column(String(40))
    note: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Book(Base):
    """Balance of a book: all incoming transfers minus all outgoing ones. It is updated with each
    transfer.
    """

    __tablename__ = "books"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    account_id: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("accounts.id"), unique=True
    )
    microcredits: Mapped[int] = mapped_column(BigInteger)
    carry: Mapped[int] = mapped_column(BigInteger)
    """Uncharged remainder of rounding, in parts of a micro-credit (`money.PARTS`)."""
