"""Stores and charges metered usage while the ledger is locked."""

from collections.abc import Sequence
from datetime import UTC, datetime

from stoker.base.config import MIB
from stoker.base.ids import Prefix, new_id
from stoker.runtime.metering import HOUR_MS
from stoker.runtime.metering import Holding as ReportedHolding
from stoker.store.db import Session
from stoker.store.tables.usage import FLEX_SUFFIX, MEMORY_KINDS, Holding, Kind, UsageCount
from stoker.tenancy.usage import repository
from stoker.tenancy.usage.counts import Counted
from stoker.tenancy.usage.ledger import Ledger
from stoker.tenancy.usage.prices import PriceList
from stoker.tenancy.usage.repository import Stored

STALE_MS = 60_000
"""Milliseconds without a report after which a worker's server counts as lost: six ticks."""
MINUTE_MS = 60_000
"""Update interval of storage in milliseconds. Storage is priced by the month, so a minute is
precise enough.
"""


async def write_held(
    session: Session, prices: PriceList, reported: Sequence[ReportedHolding]
) -> None:
    """Stores the memory that workers held, each with its last reported amount. A repeated report
    changes nothing.
    """
    known = await repository.holdings(
        session, {_subject(holding) for holding in reported}, {holding.hour for holding in reported}
    )
    for holding in reported:
        row = known.get((_subject(holding), holding.hour))
        if row is None:
            row = _begun(
                prices,
                kind=Kind.FLEX if holding.is_flex else Kind.MEMORY,
                subject_id=_subject(holding),
                account_id=holding.account_id,
                deployment_id=holding.deployment_id,
                version_id=holding.version_id or None,
                name=holding.model,
                start_ms=holding.start_ms,
                hour=holding.hour,
            )
            session.add(row)
        if holding.mib_ms < row.mib_ms:
            continue
        # A worker that is reported again was not lost. A finished holding stays final.
        row.is_final = holding.is_final or (row.is_final and holding.mib_ms == row.mib_ms)
        row.mib_ms = holding.mib_ms
        row.started_ms = min(row.started_ms, holding.start_ms)
        row.ended_ms = max(row.ended_ms, holding.end_ms)
        row.peak_mib = max(row.peak_mib, holding.peak_mib)
        row.settle()


async def write_counted(session: Session, reported: Sequence[Counted]) -> None:
    """Stores the counts of calls that this server has made. Counts only grow."""
    known = await repository.counts(session, [count.id for count in reported])
    new = {count.key for count in reported if count.key and count.id not in known}
    keys = await repository.key_ids(session, sorted(new))
    for count in reported:
        row = known.get(count.id)
        if row is None:
            row = UsageCount(
                id=count.id,
                account_id=count.account_id,
                deployment_id=count.deployment_id,
                version_id=count.version_id or None,
                key_id=keys.get(count.key),
                tier=count.tier.value,
                model=count.model,
                hour=count.hour,
            )
            session.add(row)
        for name, value in count.values.items():
            setattr(row, name, value)


async def write_stored(session: Session, prices: PriceList, now_ms: int) -> None:
    """Extends the storage rows of each artifact from the end of its last row to `now_ms`."""
    artifacts = {stored.id: stored for stored in await repository.stored(session)}
    for row in await repository.unsettled(session):
        if row.kind != Kind.STORAGE or row.is_final:
            continue
        artifact = artifacts.pop(row.subject_id, None)
        if artifact is None:
            row.is_final = True
            row.settle()
        elif now_ms // MINUTE_MS > row.ended_ms // MINUTE_MS:
            _advance(session, prices, row, artifact, now_ms)
    for artifact in artifacts.values():
        start_ms = max(int(artifact.since.timestamp() * 1000), prices.began_ms)
        if start_ms < now_ms:
            row = _stored(prices, artifact, start_ms)
            session.add(row)
            _advance(session, prices, row, artifact, now_ms)


async def end_lost(session: Session, now_ms: int) -> None:
    """Marks the holdings of workers on lost servers as final, with the amounts of their last
    tick.
    """
    for row in await repository.unsettled(session):
        if row.kind in MEMORY_KINDS and row.ended_ms < now_ms - STALE_MS:
            row.is_final = True
            row.settle()


async def charge(session: Session, ledger: Ledger, prices: PriceList, now_ms: int) -> None:
    """Charges all final holdings. Leaves kinds of a later release to its servers."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    for row in await repository.unsettled(session):
        if row.is_final and row.kind in (*MEMORY_KINDS, Kind.STORAGE):
            await ledger.charge(row, prices.version(row.price_version), now)


def _subject(holding: ReportedHolding) -> str:
    return holding.worker_id + FLEX_SUFFIX if holding.is_flex else holding.worker_id


def _advance(
    session: Session, prices: PriceList, row: Holding, artifact: Stored, now_ms: int
) -> None:
    mib = -(-artifact.size_bytes // MIB)
    while True:
        end_ms = min(now_ms, (row.hour + 1) * HOUR_MS)
        row.mib_ms += mib * (end_ms - row.ended_ms)
        row.peak_mib = max(row.peak_mib, mib)
        row.ended_ms = end_ms
        if end_ms == now_ms:
            return
        row.is_final = True
        row.settle()
        row = _stored(prices, artifact, end_ms)
        session.add(row)


def _stored(prices: PriceList, artifact: Stored, start_ms: int) -> Holding:
    return _begun(
        prices,
        kind=Kind.STORAGE,
        subject_id=artifact.id,
        account_id=artifact.account_id,
        deployment_id=None,
        version_id=None,
        name=artifact.name,
        start_ms=start_ms,
        hour=start_ms // HOUR_MS,
    )


def _begun(
    prices: PriceList,
    *,
    kind: Kind,
    subject_id: str,
    account_id: str,
    deployment_id: str | None,
    version_id: str | None,
    name: str,
    start_ms: int,
    hour: int,
) -> Holding:
    return Holding(
        id=new_id(Prefix.USAGE),
        kind=kind.value,
        subject_id=subject_id,
        account_id=account_id,
        deployment_id=deployment_id,
        version_id=version_id,
        name=name,
        hour=hour,
        started_ms=start_ms,
        ended_ms=start_ms,
        mib_ms=0,
        peak_mib=0,
        price_version=prices.at(hour).version,
        is_final=False,
        charged_mib_ms=0,
        charged_microcredits=0,
        is_settled=False,
    )
