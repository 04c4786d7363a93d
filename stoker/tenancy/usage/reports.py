"""Sums of an account's usage, and the events behind each sum."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stoker.base.errors import InvalidRequestError
from stoker.platform.web.lists import ListResponse, PageQuery
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.usage import MEMORY_KINDS, Holding, Kind
from stoker.tenancy.usage import money, repository, schemas
from stoker.tenancy.usage.grouping import HOURS_A_DAY, Grouping, Key
from stoker.tenancy.usage.prices import PriceList, hour_of
from stoker.tenancy.usage.repository import SUMS, UsageSpan
from stoker.tenancy.usage.schemas import Amounts, UsageRow

LONGEST_H, LONGEST_BY_HOUR_H = 400 * HOURS_A_DAY, 31 * HOURS_A_DAY
"""Maximum hours of a report, and of a report by hour."""
_USUAL_H, _USUAL_BY_HOUR_H = 30 * HOURS_A_DAY, HOURS_A_DAY
BY_DEPLOYMENT = Grouping(("deployment",))
MOST_ROWS = 1_000
"""Maximum rows of a report page."""
_YEARS = range(1970, 9000)


@dataclass(frozen=True)
class _Line:
    amounts: Amounts
    name: str | None
    deployment_id: str | None
    """Id of the deployment. If the row covers several, the id and the model name are those of one
    of them.
    """


def span(
    account_id: str,
    start: str | None,
    end: str | None,
    grouping: Grouping = BY_DEPLOYMENT,
    deployment_ids: Collection[str] = (),
) -> UsageSpan:
    """Returns the full hours that a range touches. Raises `InvalidRequestError`."""
    is_by_hour = "hour" in grouping
    longest = LONGEST_BY_HOUR_H if is_by_hour else LONGEST_H
    usual = _USUAL_BY_HOUR_H if is_by_hour else _USUAL_H
    until = db.now() if end is None else _moment(end, "end")
    last = -(-int(until.timestamp() * 1000) // 3_600_000)
    first = last - usual if start is None else hour_of(_moment(start, "start"))
    if first >= last:
        raise InvalidRequestError("'start' must be before 'end'.", param="start")
    if last - first > longest:
        raise InvalidRequestError(
            f"A report by {grouping} covers at most {longest // HOURS_A_DAY} days; this "
            f"request covers {-(-(last - first) // HOURS_A_DAY)}.",
            param="start",
        )
    return UsageSpan(account_id=account_id, first=first, end=last, deployment_ids=deployment_ids)


async def usage(
    session: Session,
    asked: UsageSpan,
    grouping: Grouping,
    page: str | None = None,
    limit: int = MOST_ROWS,
) -> schemas.UsageReport:
    """Returns a page of rows and the totals of all rows. Raises `InvalidRequestError` for an
    unknown page.
    """
    begin = grouping.page_begin(page) if page else None
    rows = await repository.sums(session, asked, grouping, begin, limit + 1)
    total_sums = await repository.total(session, asked)
    total = _amounts(total_sums)
    length = len(grouping.groups)
    lines = {
        tuple(row[:length]): _Line(_amounts(row[length + 2 :]), *row[length : length + 2])
        for row in rows[:limit]
    }
    prices = await PriceList.read(session)
    for row in await repository.unsettled(session, asked):
        more = accrued(row, prices)
        _accrue(total, row.kind, more)
        if line := lines.get(grouping.key_of(row)):
            _accrue(line.amounts, row.kind, more)
    keys = {grouping.value("key", key) for key in lines} - {None}
    names = await repository.key_names(session, asked.account_id, keys) if keys else {}
    for amounts in (total, *(line.amounts for line in lines.values())):
        amounts.memory_gib_hours = schemas.gib_hours(amounts.memory_mib_ms)
        amounts.flex_gib_hours = schemas.gib_hours(amounts.flex_mib_ms)
        amounts.storage_gib_hours = schemas.gib_hours(amounts.storage_mib_ms)
    has_more = len(rows) > limit
    return schemas.UsageReport(
        start=schemas.hour_begin(asked.first),
        end=schemas.hour_begin(asked.end),
        group_by=str(grouping),
        data=[_row(asked, grouping, key, line, names) for key, line in lines.items()],
        has_more=has_more,
        next_page=grouping.page_after(list(lines)[-1]) if has_more else None,
        total=total,
    )


async def events(
    session: Session, asked: UsageSpan, kind: schemas.EventType | None, query: PageQuery
) -> ListResponse[schemas.UsageEvent]:
    """Returns a page of the rows that `usage` sums up. Both tables use the same kind of id, ordered
    by time.
    """
    prices = await PriceList.read(session)
    kinds = [holding_kind for holding_kind in Kind if kind in (None, holding_kind.value)]
    holdings = await repository.holding_page(session, asked, kinds, query)
    usage_events: list[schemas.UsageEvent] = [
        schemas.HoldingEvent.of(row, accrued(row, prices)) for row in holdings.rows
    ]
    has_more = holdings.has_more
    if kind in (None, "calls"):
        counted = await repository.count_page(session, asked, query)
        usage_events += [schemas.CountEvent.of(row) for row in counted.rows]
        has_more = has_more or counted.has_more
    usage_events.sort(key=lambda event: event.id, reverse=query.order == "desc")
    data = usage_events[: query.limit]
    return ListResponse(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more or len(usage_events) > len(data),
    )


def accrued(row: Holding, prices: PriceList) -> int:
    """Returns the micro-credits that a holding has accrued since its last charge."""
    price = prices.version(row.price_version)
    return money.microcredits(row.kind, row.mib_ms - row.charged_mib_ms, price)


def as_csv(report: schemas.UsageReport) -> str:
    """Formats a report's rows as CSV (RFC 4180) with a header line."""
    out = io.StringIO()
    first = ["start", "end", "deployment_id", "version_id", "model", "key_id", "key_name", "tier"]
    fields = [*first, *Amounts.model_fields]
    writer = csv.DictWriter(out, fields)
    writer.writeheader()
    writer.writerows(row.model_dump(mode="json") for row in report.data)
    return out.getvalue()


def _amounts(sums: Sequence[Any]) -> Amounts:
    """Converts the sums of `SUMS` to amounts. PostgreSQL returns decimals."""
    named = {name: int(value or 0) for name, value in zip(SUMS, sums, strict=True)}
    microcredits = named["memory_microcredits"] + named["storage_microcredits"]
    return Amounts(**named, microcredits=microcredits)


def _accrue(amounts: Amounts, kind: str, microcredits: int) -> None:
    amounts.microcredits += microcredits
    if kind == Kind.FLEX:
        amounts.flex_microcredits += microcredits
    if kind in MEMORY_KINDS:
        amounts.memory_microcredits += microcredits
    else:
        amounts.storage_microcredits += microcredits


def _row(
    asked: UsageSpan, grouping: Grouping, key: Key, line: _Line, key_names: Mapping[str, str]
) -> UsageRow:
    first, end = grouping.hours(key) or (asked.first, asked.end)
    version, key_id = grouping.value("version", key), grouping.value("key", key)
    # A row without a deployment or version may cover several.
    is_ones = bool(version or grouping.value("deployment", key))
    return UsageRow(
        **line.amounts.model_dump(),
        start=schemas.hour_begin(max(first, asked.first)),
        end=schemas.hour_begin(min(end, asked.end)),
        deployment_id=line.deployment_id if is_ones else None,
        version_id=version,
        model=line.name if is_ones else None,
        key_id=key_id,
        key_name=key_names.get(key_id) if key_id else None,
        tier=grouping.value("tier", key),
    )


def _moment(text: str, field: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.year not in _YEARS:
        raise InvalidRequestError(
            f"'{field}' must be an ISO 8601 time, such as 2026-11-21 or 2026-11-21T10:00:00Z.",
            param=field,
        )
    return moment
