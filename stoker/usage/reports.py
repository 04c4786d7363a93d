"""What an account used, summed up, and the events behind each sum."""

import csv
import io
from datetime import UTC, datetime
from typing import Any

from stoker.errors import InvalidRequestError
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.usage import Holding, Kind
from stoker.usage import money, repository, schemas
from stoker.usage.prices import PriceList, hour_of
from stoker.usage.repository import COUNTS, Span
from stoker.usage.schemas import Amounts, GroupBy, UsageRow
from stoker.web.lists import ListResponse, PageQuery

DAY = 24
LONGEST = {"deployment": 400 * DAY, "version": 400 * DAY, "day": 400 * DAY, "hour": 31 * DAY}
"""Hours that one report may span."""
_USUAL = {"deployment": 30 * DAY, "version": 30 * DAY, "day": 30 * DAY, "hour": DAY}
_COLUMNS = {"deployment": "deployment_id", "version": "version_id", "day": "hour", "hour": "hour"}
_YEARS = range(1970, 9000)


def span(
    account_id: str,
    start: str | None,
    end: str | None,
    group_by: GroupBy = "deployment",
    deployment_id: str | None = None,
) -> Span:
    """The full hours that a range touches. Raises `InvalidRequestError`."""
    until = db.now() if end is None else _moment(end, "end")
    last = -(-int(until.timestamp() * 1000) // 3_600_000)
    first = last - _USUAL[group_by] if start is None else hour_of(_moment(start, "start"))
    if first >= last:
        raise InvalidRequestError("'start' must be before 'end'.", param="start")
    if last - first > LONGEST[group_by]:
        raise InvalidRequestError(
            f"At most {LONGEST[group_by] // DAY} days can be asked for by {group_by}; these are "
            f"{-(-(last - first) // DAY)}.",
            param="start",
        )
    return Span(account_id=account_id, first=first, end=last, deployment_id=deployment_id)


async def usage(session: Session, asked: Span, group_by: GroupBy) -> schemas.UsageReport:
    lines: dict[Any, Amounts] = {}
    names: dict[Any, tuple[str, str | None]] = {}
    total = Amounts()
    key = _COLUMNS[group_by]

    def add(found: Any, **amounts: int) -> None:
        group = found // DAY if group_by == "day" else found
        for line in (total, lines.setdefault(group, Amounts())):
            for name, value in amounts.items():
                setattr(line, name, getattr(line, name) + int(value))

    for found, kind, *name, mib_ms, charged in await repository.sums(session, asked, key):
        names[found] = name[0], name[1]
        add(found, **_held(kind, mib_ms, charged))
    prices = await PriceList.read(session)
    for row in await repository.unsettled(session, asked):
        add(getattr(row, key), **_held(row.kind, 0, accrued(row, prices)))
    for found, model, deployment, *values in await repository.count_sums(session, asked, key):
        names[found] = model, deployment
        add(found, **{count.key: value for count, value in zip(COUNTS, values, strict=True)})
    for line in (total, *lines.values()):
        line.memory_gib_hours = schemas.gib_hours(line.memory_mib_ms)
        line.storage_gib_hours = schemas.gib_hours(line.storage_mib_ms)
    return schemas.UsageReport(
        start=schemas.hour_begin(asked.first),
        end=schemas.hour_begin(asked.end),
        group_by=group_by,
        data=[
            _row(group, line, asked, group_by, names)
            for group, line in sorted(lines.items(), key=lambda item: (item[0] is None, item[0]))
        ],
        total=total,
    )


async def events(
    session: Session, asked: Span, kind: schemas.EventType | None, query: PageQuery
) -> ListResponse[schemas.UsageEvent]:
    """The rows that `usage` sums up. Ids of both tables are of one kind, and ordered by time."""
    prices = await PriceList.read(session)
    kinds = [one for one in Kind if kind in (None, one.value)]
    held = await repository.holding_page(session, asked, kinds, query)
    found: list[schemas.UsageEvent] = [
        schemas.HoldingEvent.of(row, accrued(row, prices)) for row in held.rows
    ]
    has_more = held.has_more
    if kind in (None, "calls"):
        counted = await repository.count_page(session, asked, query)
        found += [schemas.CountEvent.of(row) for row in counted.rows]
        has_more = has_more or counted.has_more
    found.sort(key=lambda event: event.id, reverse=query.order == "desc")
    data = found[: query.limit]
    return ListResponse(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more or len(found) > len(data),
    )


def accrued(row: Holding, prices: PriceList) -> int:
    """Micro-credits that a holding has come to since it was charged."""
    price = prices.version(row.price_version)
    return money.microcredits(row.kind, row.mib_ms - row.charged_mib_ms, price)


def as_csv(report: schemas.UsageReport) -> str:
    """A report's rows as RFC 4180 has it, with a head."""
    out = io.StringIO()
    first = ["start", "end", "deployment_id", "version_id", "model"]
    fields = [*first, *Amounts.model_fields]
    writer = csv.DictWriter(out, fields)
    writer.writeheader()
    writer.writerows(row.model_dump(mode="json") for row in report.data)
    return out.getvalue()


def _held(kind: str, mib_ms: int, microcredits: int) -> dict[str, int]:
    return {
        f"{kind}_mib_ms": mib_ms,
        f"{kind}_microcredits": microcredits,
        "microcredits": microcredits,
    }


def _row(
    group: Any,
    line: Amounts,
    asked: Span,
    group_by: GroupBy,
    names: dict[Any, tuple[str, str | None]],
) -> UsageRow:
    first, end, model, deployment = asked.first, asked.end, None, None
    if group_by in ("deployment", "version"):
        # What is of none may be of many.
        model, deployment = names[group] if group else (None, None)
    elif group_by == "day":
        first, end = max(first, group * DAY), min(end, (group + 1) * DAY)
    else:
        first, end = group, group + 1
    return UsageRow(
        **line.model_dump(),
        start=schemas.hour_begin(first),
        end=schemas.hour_begin(end),
        deployment_id=deployment,
        version_id=group if group_by == "version" else None,
        model=model,
    )


def _moment(text: str, field: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        found = None
    if found is None or found.year not in _YEARS:
        raise InvalidRequestError(
            f"'{field}' must be a moment as ISO 8601 has it, such as 2026-11-21 or "
            "2026-11-21T10:00:00Z.",
            param=field,
        )
    return found
