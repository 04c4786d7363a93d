from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.runtime.metering import HOUR_MS
from stoker.store.db import NO_CONTROL
from stoker.store.tables import usage as models
from stoker.tenancy.usage import money

Rate = Annotated[int, Field(ge=0, le=10**9)]

MOST_MICROCREDITS = 10**15
"""Maximum micro-credits of one grant: a thousand million credits."""


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def hour_begin(hour: int) -> datetime:
    return moment(hour * HOUR_MS)


class Price(ResponseModel):
    id: str
    object: Literal["price"] = "price"
    version: int
    memory_microcredits_per_gib_hour: int
    flex_microcredits_per_gib_hour: int = Field(
        description="Price of memory while it serves background work only."
    )
    storage_microcredits_per_gib_month: int = Field(description="A month has 30 days.")
    effective_from: UtcString
    created_at: UtcString

    @classmethod
    def of(cls, row: models.Price) -> "Price":
        return cls(
            id=row.id,
            version=row.version,
            memory_microcredits_per_gib_hour=row.memory,
            flex_microcredits_per_gib_hour=money.flex_rate(row),
            storage_microcredits_per_gib_month=row.storage,
            effective_from=hour_begin(row.hour),
            created_at=row.created_at,
        )


class PriceCreate(RequestModel):
    memory_microcredits_per_gib_hour: Rate
    flex_microcredits_per_gib_hour: Rate | None = Field(
        default=None,
        description="Price of memory while it serves background work only. At most that of memory; "
        "default: half of it.",
    )
    storage_microcredits_per_gib_month: Rate = Field(description="A month has 30 days.")
    effective_from: AwareDatetime | None = Field(
        default=None, description="A full hour in the future; default: the next one."
    )

    @model_validator(mode="after")
    def _discounted(self) -> "PriceCreate":
        flex = self.flex_microcredits_per_gib_hour
        if flex is not None and flex > self.memory_microcredits_per_gib_hour:
            raise ValueError(
                "flex_microcredits_per_gib_hour must be at most memory_microcredits_per_gib_hour"
            )
        return self


class Credits(ResponseModel):
    object: Literal["credits"] = "credits"
    account_id: str
    balance_microcredits: int = Field(
        description="Balance after all charges; a million is one credit."
    )
    balance: str = Field(description="Balance in credits.", examples=["999998.250000"])
    pending_microcredits: int = Field(
        description="Usage that is not charged yet. The balance does not include it."
    )
    price: Price = Field(description="In force now.")


class GrantCreate(RequestModel):
    amount_microcredits: int = Field(
        ge=-MOST_MICROCREDITS,
        le=MOST_MICROCREDITS,
        description="A million is one credit. Negative only with `correction`.",
    )
    correction: bool = Field(
        default=False, description="True takes credit back. The amount must then be negative."
    )
    note: str | None = Field(default=None, min_length=1, max_length=500, pattern=NO_CONTROL)

    @model_validator(mode="after")
    def _signed(self) -> "GrantCreate":
        if self.amount_microcredits == 0:
            raise ValueError("amount_microcredits must not be zero")
        if self.correction != (self.amount_microcredits < 0):
            raise ValueError(
                "amount_microcredits must be below zero with 'correction': true, and above zero "
                "without"
            )
        return self


class Transfer(ResponseModel):
    id: str
    object: Literal["credit.transfer"] = "credit.transfer"
    account_id: str
    kind: models.TransferKind
    microcredits: int = Field(description="Amount added to the account. Negative if taken from it.")
    event_id: str | None = Field(description="Usage event that a charge is for.")
    note: str | None
    created_at: UtcString

    @classmethod
    def of(cls, row: models.Transfer) -> "Transfer":
        is_out = row.source.startswith("account:")
        return cls(
            id=row.id,
            account_id=row.account_id or "",
            kind=models.TransferKind(row.kind),
            microcredits=-row.microcredits if is_out else row.microcredits,
            event_id=row.holding_id,
            note=row.note,
            created_at=row.created_at,
        )


class Amounts(ResponseModel):
    microcredits: int = Field(default=0, description="Amount charged, and accrued until now.")
    memory_mib_ms: int = Field(default=0, description="MiB of memory times milliseconds.")
    memory_gib_hours: float = Field(default=0, description="Rounded value in GiB hours.")
    memory_microcredits: int = 0
    flex_mib_ms: int = Field(
        default=0, description="Part of `memory_mib_ms` at the price of background work."
    )
    flex_gib_hours: float = Field(default=0, description="Rounded value in GiB hours.")
    flex_microcredits: int = Field(default=0, description="Part of `memory_microcredits`.")
    storage_mib_ms: int = Field(default=0, description="MiB of storage times milliseconds.")
    storage_gib_hours: float = Field(default=0, description="Rounded value in GiB hours.")
    storage_microcredits: int = 0
    requests: int = 0
    errors: int = Field(default=0, description="Requests that failed.")
    mirrored: int = Field(
        default=0, description="Mirrored requests. They are billed like other requests."
    )
    input_tokens: int = 0
    output_tokens: int = 0
    images: int = Field(default=0, description="Made.")
    audio_ms: int = Field(default=0, description="Heard or spoken.")
    video_ms: int = Field(default=0, description="Made.")


class UsageRow(Amounts):
    start: UtcString
    end: UtcString
    deployment_id: str | None = Field(
        description="Grouped by deployment or version. The id of a trial (trial_…) for the memory "
        "and calls of that trial. Null: storage, or not grouped by deployment."
    )
    version_id: str | None = Field(
        description=(
            "With `group_by=version`; null for usage of no version, or recorded before "
            "versions were tracked."
        )
    )
    model: str | None
    key_id: str | None = Field(
        description=(
            "With `group_by=key`; null for memory, for calls by the server itself, and "
            "for calls recorded before keys were tracked."
        )
    )
    key_name: str | None = Field(
        description="Current name of the key. Null if it has no name or no longer exists."
    )
    tier: str | None = Field(
        description=(
            "Service tier, with `group_by=tier`. Null for storage, for memory at the full price, "
            "and for calls recorded before tiers were tracked."
        )
    )


class UsageReport(ResponseModel):
    object: Literal["usage"] = "usage"
    start: UtcString = Field(description="Requested start, rounded down to a full hour.")
    end: UtcString = Field(description="Requested end, rounded up to a full hour. Not included.")
    group_by: str = Field(description="As asked for.")
    data: list[UsageRow]
    has_more: bool = Field(description="True if there are more rows than `limit`.")
    next_page: str | None = Field(description="Value of `page` for the next rows.")
    total: Amounts = Field(description="Total over all rows of all pages.")


class HoldingEvent(ResponseModel):
    """Memory of one worker, or storage of one artifact, held during one hour. Memory at the price
    of background work has the type `flex`.
    """

    id: str
    object: Literal["usage.event"] = "usage.event"
    type: models.Kind
    deployment_id: str | None
    version_id: str | None
    name: str = Field(description="Name of the model or artifact at that time.")
    subject_id: str = Field(description="Id of the worker or artifact.")
    hour: UtcString
    started_at: UtcString
    ended_at: UtcString
    mib_ms: int
    peak_mib: int
    price_version: int
    microcredits: int = Field(description="Amount charged, and accrued until now.")
    is_final: bool

    @classmethod
    def of(cls, row: models.Holding, accrued: int) -> "HoldingEvent":
        return cls(
            id=row.id,
            type=models.Kind(row.kind),
            deployment_id=row.deployment_id,
            version_id=row.version_id,
            name=row.name,
            subject_id=row.subject_id.removesuffix(models.FLEX_SUFFIX),
            hour=hour_begin(row.hour),
            started_at=moment(row.started_ms),
            ended_at=moment(row.ended_ms),
            mib_ms=row.mib_ms,
            peak_mib=row.peak_mib,
            price_version=row.price_version,
            microcredits=row.charged_microcredits + accrued,
            is_final=row.is_final,
        )


class CountEvent(ResponseModel):
    """Counts by one server of a key's calls to a deployment's version in one hour and tier."""

    id: str
    object: Literal["usage.event"] = "usage.event"
    type: Literal["calls"] = "calls"
    deployment_id: str
    version_id: str | None
    key_id: str | None = Field(
        description=(
            "Key that made the calls. Null for the server's own calls, and for calls "
            "recorded before keys were tracked."
        )
    )
    tier: str | None = Field(
        description="Service tier of the calls. Null for calls recorded before tiers were tracked."
    )
    name: str = Field(description="The model's.")
    hour: UtcString
    requests: int
    errors: int
    mirrored: int
    input_tokens: int
    output_tokens: int
    images: int
    audio_ms: int
    video_ms: int

    @classmethod
    def of(cls, row: models.UsageCount) -> "CountEvent":
        return cls(
            id=row.id,
            deployment_id=row.deployment_id,
            version_id=row.version_id,
            key_id=row.key_id,
            tier=row.tier,
            name=row.model,
            hour=hour_begin(row.hour),
            requests=row.requests,
            errors=row.errors,
            mirrored=row.mirrored,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            images=row.images,
            audio_ms=row.audio_ms,
            video_ms=row.video_ms,
        )


UsageEvent = HoldingEvent | CountEvent
EventType = Literal["memory", "flex", "storage", "calls"]


def gib_hours(mib_ms: int) -> float:
    return round(mib_ms / money.GIB_HOUR, 6)
