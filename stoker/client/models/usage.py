# `python -m tools.client_api` writes this file.
"""Responses of usage, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec


class Amounts(msgspec.Struct, kw_only=True):
    audio_ms: int = 0
    """Heard or spoken."""
    errors: int = 0
    """Requests that failed."""
    flex_gib_hours: float = 0
    """Rounded value in GiB hours."""
    flex_mib_ms: int = 0
    """Part of `memory_mib_ms` at the price of background work."""
    flex_microcredits: int = 0
    """Part of `memory_microcredits`."""
    images: int = 0
    """Made."""
    input_tokens: int = 0
    memory_gib_hours: float = 0
    """Rounded value in GiB hours."""
    memory_mib_ms: int = 0
    """MiB of memory times milliseconds."""
    memory_microcredits: int = 0
    microcredits: int = 0
    """Amount charged, and accrued until now."""
    mirrored: int = 0
    """Mirrored requests. They are billed like other requests."""
    output_tokens: int = 0
    requests: int = 0
    storage_gib_hours: float = 0
    """Rounded value in GiB hours."""
    storage_mib_ms: int = 0
    """MiB of storage times milliseconds."""
    storage_microcredits: int = 0
    video_ms: int = 0
    """Made."""


class Price(msgspec.Struct, kw_only=True):
    created_at: str
    effective_from: str
    flex_microcredits_per_gib_hour: int
    """Price of memory while it serves background work only."""
    id: str
    memory_microcredits_per_gib_hour: int
    object: str = "price"
    storage_microcredits_per_gib_month: int
    """A month has 30 days."""
    version: int


class Credits(msgspec.Struct, kw_only=True):
    account_id: str
    balance: str
    """Balance in credits."""
    balance_microcredits: int
    """Balance after all charges; a million is one credit."""
    object: str = "credits"
    pending_microcredits: int
    """Usage that is not charged yet. The balance does not include it."""
    price: Price
    """In force now."""


if TYPE_CHECKING:
    TransferKind: TypeAlias = (
        Literal["opening", "grant", "correction", "memory", "flex", "storage"] | str
    )
else:
    TransferKind = str


class Transfer(msgspec.Struct, kw_only=True):
    account_id: str
    created_at: str
    event_id: str | None
    """Usage event that a charge is for."""
    id: str
    kind: TransferKind
    microcredits: int
    """Amount added to the account. Negative if taken from it."""
    note: str | None
    object: str = "credit.transfer"


class UsageEvent(msgspec.Struct, kw_only=True):
    """Memory of one worker, or storage of one artifact, held during one hour. Memory at the
    price of background work has the type `flex`. Counts by one server of a key's calls to
    a deployment's version in one hour and tier.
    """

    deployment_id: str
    ended_at: str | None = None
    hour: str
    id: str
    is_final: bool | None = None
    mib_ms: int | None = None
    microcredits: int | None = None
    """Amount charged, and accrued until now."""
    name: str
    object: str = "usage.event"
    peak_mib: int | None = None
    price_version: int | None = None
    started_at: str | None = None
    subject_id: str | None = None
    """Id of the worker or artifact."""
    type: str | None = None
    version_id: str | None
    audio_ms: int | None = None
    errors: int | None = None
    images: int | None = None
    input_tokens: int | None = None
    key_id: str | None = None
    """Key that made the calls. Null for the server's own calls, and for calls recorded
    before keys were tracked.
    """
    mirrored: int | None = None
    output_tokens: int | None = None
    requests: int | None = None
    tier: str | None = None
    """Service tier of the calls. Null for calls recorded before tiers were tracked."""
    video_ms: int | None = None


class UsageRow(msgspec.Struct, kw_only=True):
    audio_ms: int = 0
    """Heard or spoken."""
    deployment_id: str | None
    """Grouped by deployment or version. The id of a trial (trial_…) for the memory and calls
    of that trial. Null: storage, or not grouped by deployment.
    """
    end: str
    errors: int = 0
    """Requests that failed."""
    flex_gib_hours: float = 0
    """Rounded value in GiB hours."""
    flex_mib_ms: int = 0
    """Part of `memory_mib_ms` at the price of background work."""
    flex_microcredits: int = 0
    """Part of `memory_microcredits`."""
    images: int = 0
    """Made."""
    input_tokens: int = 0
    key_id: str | None
    """With `group_by=key`; null for memory, for calls by the server itself, and for calls
    recorded before keys were tracked.
    """
    key_name: str | None
    """Current name of the key. Null if it has no name or no longer exists."""
    memory_gib_hours: float = 0
    """Rounded value in GiB hours."""
    memory_mib_ms: int = 0
    """MiB of memory times milliseconds."""
    memory_microcredits: int = 0
    microcredits: int = 0
    """Amount charged, and accrued until now."""
    mirrored: int = 0
    """Mirrored requests. They are billed like other requests."""
    model: str | None
    output_tokens: int = 0
    requests: int = 0
    start: str
    storage_gib_hours: float = 0
    """Rounded value in GiB hours."""
    storage_mib_ms: int = 0
    """MiB of storage times milliseconds."""
    storage_microcredits: int = 0
    tier: str | None
    """Service tier, with `group_by=tier`. Null for storage, for memory at the full price,
    and for calls recorded before tiers were tracked.
    """
    version_id: str | None
    """With `group_by=version`; null for usage of no version, or recorded before versions
    were tracked.
    """
    video_ms: int = 0
    """Made."""


class UsageReport(msgspec.Struct, kw_only=True):
    data: list[UsageRow]
    end: str
    """Requested end, rounded up to a full hour. Not included."""
    group_by: str
    """As asked for."""
    has_more: bool
    """True if there are more rows than `limit`."""
    next_page: str | None
    """Value of `page` for the next rows."""
    object: str = "usage"
    start: str
    """Requested start, rounded down to a full hour."""
    total: Amounts
    """Total over all rows of all pages."""
