"""Counts the accounts' use of each quota, with one statement each."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select, union_all
from sqlalchemy.orm import InstrumentedAttribute

from stoker.platform.quotas.limits import Quota
from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Agent, Run
from stoker.store.tables.artifacts import Artifact, Upload, UploadFile, UploadPart, UploadStatus
from stoker.store.tables.batches import Batch
from stoker.store.tables.checks import DeploymentChecks
from stoker.store.tables.deployments import Deployment, DeploymentVersion
from stoker.store.tables.files import File, FileUpload, FileUploadPart, FileUploadStatus
from stoker.store.tables.jobs import UNFINISHED
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.responses import StoredResponse
from stoker.store.tables.videos import Video

_IS_PENDING = FileUpload.status == FileUploadStatus.PENDING
_TAKING = (UploadStatus.OPEN.value, UploadStatus.INGESTING.value)
"""States of sessions that hold bytes which do not belong to live files yet."""

Owner = InstrumentedAttribute[str] | InstrumentedAttribute[str | None]


async def locked(session: Session, account_id: str) -> Mapping[str, int]:
    """Returns the limits that the operator has set for an account, and locks them. Other
    transactions that request them wait until this one ends.
    """
    # Does not lock the key, because rows that refer to the account are added in the meantime.
    # SQLite has only one writer.
    statement = select(Account.quotas).where(Account.id == account_id)
    return await session.scalar(statement.with_for_update(key_share=True)) or {}


async def own(session: Session, account_id: str) -> Mapping[str, int]:
    """Returns the limits that the operator has set for an account."""
    return await session.scalar(select(Account.quotas).where(Account.id == account_id)) or {}


async def used(session: Session, quota: Quota, account_id: str) -> int:
    """Returns an account's current use of a quota."""
    row = (await session.execute(_COUNTED[quota](account_id))).first()
    return int(row[1] or 0) if row else 0


async def used_by_all(session: Session, quota: Quota) -> dict[str, int]:
    """Returns the use of a quota by account. Omits accounts without any."""
    rows = await session.execute(_COUNTED[quota](None))
    return {row[0]: int(row[1]) for row in rows if row[0] and row[1]}


def _rows(
    owner: Owner, *conditions: ColumnElement[bool]
) -> Callable[[str | None], Select[Any, Any]]:
    """Builds a query that counts rows by account."""

    def counted(account_id: str | None) -> Select[Any, Any]:
        return _of(select(owner, func.count()).where(*conditions), owner, account_id)

    return counted


def _sessions(account_id: str | None) -> Select[Any, Any]:
    statement = (
        select(Artifact.account_id, func.count())
        .join(Upload, Upload.artifact_id == Artifact.id)
        .where(Upload.status.in_(_TAKING))
    )
    of_files = select(FileUpload.account_id, func.count()).where(_IS_PENDING)
    counts = union_all(
        _of(statement, Artifact.account_id, account_id),
        _of(of_files, FileUpload.account_id, account_id),
    ).subquery()
    owner, count = counts.c
    return select(owner, func.sum(count)).group_by(owner)


def _storage(account_id: str | None) -> Select[Any, Any]:
    """Builds a query for the stored bytes by account.

    Sums live files, upload sessions, files of models and clients, uploads of files, folders of
    merged adapters, checks, agents, inputs of runs, and stored responses with their events. A
    session counts the larger of its declared and received bytes.
    """
    live = select(Artifact.account_id, func.sum(Artifact.size_bytes).label("bytes"))
    made = select(File.account_id, func.sum(File.size).label("bytes"))
    merged = select(
        DeploymentVersion.account_id, func.sum(DeploymentVersion.merged_bytes).label("bytes")
    )
    responses = select(
        StoredResponse.account_id,
        func.sum(StoredResponse.stored_bytes + StoredResponse.event_bytes).label("bytes"),
    )
    texts = (_of(_bytes_of(table), table.account_id, account_id) for table in (Agent, Run))
    checks = _bytes_of_checks(account_id)
    session_bytes = _session_bytes(account_id)
    parts = union_all(
        _of(live, Artifact.account_id, account_id),
        _of(made, File.account_id, account_id),
        _of(merged, DeploymentVersion.account_id, account_id),
        _of(responses, StoredResponse.account_id, account_id),
        *texts,
        checks,
        _bytes_of_file_uploads(account_id),
        select(
            session_bytes.c.account_id,
            _larger(session_bytes.c.declared, session_bytes.c.received).label("bytes"),
        ),
    ).subquery()
    return select(parts.c.account_id, func.sum(parts.c.bytes)).group_by(parts.c.account_id)


def _bytes_of(table: type[Agent] | type[Run]) -> Select[Any, Any]:
    return select(table.account_id, func.sum(table.stored_bytes).label("bytes"))


def _bytes_of_checks(account_id: str | None) -> Select[Any, Any]:
    statement = select(
        Deployment.account_id, func.sum(DeploymentChecks.stored_bytes).label("bytes")
    ).join(DeploymentChecks, DeploymentChecks.deployment_id == Deployment.id)
    return _of(statement, Deployment.account_id, account_id)


def _bytes_of_file_uploads(account_id: str | None) -> Select[Any, Any]:
    """Builds a query with a row per pending upload. It counts as a session does."""
    received = (
        select(FileUploadPart.upload_id, func.sum(FileUploadPart.size).label("bytes"))
        .group_by(FileUploadPart.upload_id)
        .subquery()
    )
    statement = (
        select(FileUpload.account_id, _larger(FileUpload.size, received.c.bytes).label("bytes"))
        .outerjoin(received, received.c.upload_id == FileUpload.id)
        .where(_IS_PENDING)
    )
    return statement if account_id is None else statement.where(FileUpload.account_id == account_id)


def _session_bytes(account_id: str | None) -> Any:
    """Builds a query with a row per receiving session: its account, declared bytes, and bytes of
    its files.
    """
    received = (
        select(UploadPart.upload_id, UploadPart.path, func.sum(UploadPart.size).label("bytes"))
        .group_by(UploadPart.upload_id, UploadPart.path)
        .where(UploadPart.upload_id.in_(_taking(account_id)))
        .subquery()
    )
    size = func.coalesce(UploadFile.size, received.c.bytes, 0)
    return (
        select(
            Artifact.account_id,
            Upload.declared_bytes.label("declared"),
            func.sum(size).label("received"),
        )
        .join(Upload, Upload.artifact_id == Artifact.id)
        .outerjoin(UploadFile, UploadFile.upload_id == Upload.id)
        .outerjoin(
            received,
            (received.c.upload_id == UploadFile.upload_id) & (received.c.path == UploadFile.path),
        )
        .where(Upload.id.in_(_taking(account_id)))
        .group_by(Upload.id, Artifact.account_id, Upload.declared_bytes)
        .subquery()
    )


def _taking(account_id: str | None) -> Select[str]:
    statement = (
        select(Upload.id)
        .join(Artifact, Artifact.id == Upload.artifact_id)
        .where(Upload.status.in_(_TAKING))
    )
    return statement if account_id is None else statement.where(Artifact.account_id == account_id)


def _larger(one: Any, other: Any) -> ColumnElement[int]:
    """Returns the larger value. The two databases have no common function for it."""
    one, other = func.coalesce(one, 0), func.coalesce(other, 0)
    return case((one > other, one), else_=other)


def _of(found: Select[Any, Any], owner: Owner, account_id: str | None) -> Select[Any, Any]:
    found = found.group_by(owner)
    return found if account_id is None else found.where(owner == account_id)


_COUNTED: Mapping[Quota, Callable[[str | None], Select[Any, Any]]] = {
    Quota.STORAGE_BYTES: _storage,
    Quota.UPLOAD_SESSIONS: _sessions,
    Quota.ARTIFACTS: _rows(Artifact.account_id),
    Quota.DEPLOYMENTS: _rows(Deployment.account_id),
    Quota.KEYS: _rows(ApiKey.account_id, ApiKey.revoked_at.is_(None)),
    Quota.AGENTS: _rows(Agent.account_id),
    Quota.RUNS: _rows(Run.account_id),
    Quota.FILES: _rows(File.account_id),
    Quota.VIDEOS: _rows(Video.account_id),
    Quota.BATCHES: _rows(Batch.account_id, Batch.status.in_(UNFINISHED)),
}
