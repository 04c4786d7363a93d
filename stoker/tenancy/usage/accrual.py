"""Writes down what was held, and charges it. All of it while the ledger is locked."""

from collections.abc import Sequence
from datetime import UTC, datetime

from stoker.base.config import MIB
from stoker.base.ids import Prefix, new_id
from stoker.runtime.metering import HOUR_MS
from stoker.runtime.metering import Holding as ReportedHolding
from stoker.store.db import Session
from stoker.store.tables.usage import Holding, Kind, UsageCount
from stoker.tenancy.usage import repository
from stoker.tenancy.usage.counts import Counted
from stoker.tenancy.usage.ledger import Ledger
from stoker.tenancy.usage.prices import PriceList
from stoker.tenancy.usage.repository import Stored

STALE_MS = 60_000
"""A worker that was not reported for so long has lost its server; six ticks."""
MINUTE_MS = 60_000
"""Storage is brought up to date in each new minute only: its unit is the month."""


async def write_held(
    session: Session, prices: PriceList, reported: Sequence[ReportedHolding]
) -> None:
    """What workers held, each as much as was reported last. Reported again, it changes nothing."""
    known = await repository.holdings(
        session, {one.worker_id for one in reported}, {one.hour for one in reported}
    )
    for one in reported:
        row = known.get((one.worker_id, one.hour))
        if row is None:
            row = _begun(
                prices,
                kind=Kind.MEMORY,
                subject_id=one.worker_id,
                account_id=one.account_id,
                deployment_id=one.deployment_id,
                version_id=one.version_id or None,
                name=one.model,
                start_ms=one.start_ms,
                hour=one.hour,
            )
            session.add(row)
        if one.mib_ms < row.mib_ms:
            continue
        # A worker thought lost that is reported again was not; what is over stays over.
        row.is_final = one.is_final or (row.is_final and one.mib_ms == row.mib_ms)
        row.mib_ms = one.mib_ms
        row.started_ms = min(row.started_ms, one.start_ms)
        row.ended_ms = max(row.ended_ms, one.end_ms)
        row.peak_mib = max(row.peak_mib, one.peak_mib)
        row.settle()


async def write_counted(session: Session, reported: Sequence[Counted]) -> None:
    """What calls came to, as counted by this server; it only grows."""
    known = await repository.counts(session, [one.id for one in reported])
    new = {one.key for one in reported if one.key and one.id not in known}
    keys = await repository.key_ids(session, sorted(new))
    for one in reported:
        row = known.get(one.id)
        if row is None:
            row = UsageCount(
                id=one.id,
                account_id=one.account_id,
                deployment_id=one.deployment_id,
                version_id=one.version_id or None,
                key_id=keys.get(one.key),
                model=one.model,
                hour=one.hour,
            )
            session.add(row)
        for name, value in one.values.items():
            setattr(row, name, value)


async def write_stored(session: Session, prices: PriceList, now_ms: int) -> None:
    """Bring storage up to now, each artifact from where its own last row ends."""
    artifacts = {one.id: one for one in await repository.stored(session)}
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
    """What workers of a server that was killed had held by its last tick is all there will be."""
    for row in await repository.unsettled(session):
        if row.kind == Kind.MEMORY and row.ended_ms < now_ms - STALE_MS:
            row.is_final = True
            row.settle()


async def charge(session: Session, ledger: Ledger, prices: PriceList, now_ms: int) -> None:
    """Charge all that is final."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    for row in await repository.unsettled(session):
        if row.is_final:
            await ledger.charge(row, prices.version(row.price_version), now)


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
