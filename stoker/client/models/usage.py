# `python -m tools.client_api` writes this file.
"""Responses of usage, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec


class Amounts(msgspec.Struct, kw_only=True):
    audio_ms: int = 0
    errors: int = 0
    images: int = 0
    input_tokens: int = 0
    memory_gib_hours: float = 0
    memory_mib_ms: int = 0
    memory_microcredits: int = 0
    microcredits: int = 0
    mirrored: int = 0
    output_tokens: int = 0
    requests: int = 0
    storage_gib_hours: float = 0
    storage_mib_ms: int = 0
    storage_microcredits: int = 0
    video_ms: int = 0


class Price(msgspec.Struct, kw_only=True):
    created_at: str
    effective_from: str
    id: str
    memory_microcredits_per_gib_hour: int
    object: str = "price"
    storage_microcredits_per_gib_month: int
    version: int


class Credits(msgspec.Struct, kw_only=True):
    account_id: str
    balance: str
    balance_microcredits: int
    object: str = "credits"
    pending_microcredits: int
    price: Price


if TYPE_CHECKING:
    TransferKind: TypeAlias = Literal["opening", "grant", "correction", "memory", "storage"] | str
else:
    TransferKind = str


class Transfer(msgspec.Struct, kw_only=True):
    account_id: str
    created_at: str
    event_id: str | None
    id: str
    kind: TransferKind
    microcredits: int
    note: str | None
    object: str = "credit.transfer"


class UsageEvent(msgspec.Struct, kw_only=True):
    """Memory of one worker, or storage of one artifact, held during one hour. Counts by one
    server of a key's calls to a deployment's version during one hour.
    """

    deployment_id: str
    ended_at: str | None = None
    hour: str
    id: str
    is_final: bool | None = None
    mib_ms: int | None = None
    microcredits: int | None = None
    name: str
    object: str = "usage.event"
    peak_mib: int | None = None
    price_version: int | None = None
    started_at: str | None = None
    subject_id: str | None = None
    type: str | None = None
    version_id: str | None
    audio_ms: int | None = None
    errors: int | None = None
    images: int | None = None
    input_tokens: int | None = None
    key_id: str | None = None
    mirrored: int | None = None
    output_tokens: int | None = None
    requests: int | None = None
    video_ms: int | None = None


class UsageRow(msgspec.Struct, kw_only=True):
    audio_ms: int = 0
    deployment_id: str | None
    end: str
    errors: int = 0
    images: int = 0
    input_tokens: int = 0
    key_id: str | None
    key_name: str | None
    memory_gib_hours: float = 0
    memory_mib_ms: int = 0
    memory_microcredits: int = 0
    microcredits: int = 0
    mirrored: int = 0
    model: str | None
    output_tokens: int = 0
    requests: int = 0
    start: str
    storage_gib_hours: float = 0
    storage_mib_ms: int = 0
    storage_microcredits: int = 0
    version_id: str | None
    video_ms: int = 0


class UsageReport(msgspec.Struct, kw_only=True):
    data: list[UsageRow]
    end: str
    group_by: str
    has_more: bool
    next_page: str | None
    object: str = "usage"
    start: str
    total: Amounts
