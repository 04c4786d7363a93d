"""Selects the rows of each table that belong to an account. A test compares this with the
schema.
"""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import ColumnElement, Row, delete, exists, or_, select

from stoker.store.db import Base, Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Agent, Run, RunEvent
from stoker.store.tables.artifacts import Artifact, Upload, UploadFile, UploadPart
from stoker.store.tables.batches import Batch, BatchPart
from stoker.store.tables.checks import DeploymentChecks
from stoker.store.tables.console import ConsoleLink, ConsoleSession
from stoker.store.tables.deployments import (
    Deployment,
    DeploymentEvent,
    DeploymentVersion,
    VersionComparison,
)
from stoker.store.tables.files import File, FileUpload, FileUploadPart
from stoker.store.tables.idempotency import IdempotencyRecord
from stoker.store.tables.imports import Import
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.nodes import Lease, Node
from stoker.store.tables.responses import ResponseEvents, StoredResponse
from stoker.store.tables.servers import (
    DeploymentChange,
    RateLevel,
    Revision,
    SchemaSupportRow,
    Server,
    SharedSecret,
)
from stoker.store.tables.trials import Trial
from stoker.store.tables.usage import Book, Holding, Price, Transfer, UsageCount
from stoker.store.tables.videos import Video

OWNED: tuple[type[Base], ...] = (
    Agent,
    ApiKey,
    Artifact,
    Batch,
    Book,
    Deployment,
    DeploymentVersion,
    File,
    FileUpload,
    Holding,
    Import,
    Run,
    StoredResponse,
    Transfer,
    Trial,
    UsageCount,
    Video,
)
"""Tables with a column for their account."""
KEPT: Mapping[type[Base], str] = {
    DeploymentChange: "random ids, by which other servers notice that a deployment was deleted",
    Lease: "random ids, removed with the replicas",
    Node: "belongs to no account",
    Price: "belongs to no account",
    Revision: "belongs to no account",
    SchemaSupportRow: "belongs to no account",
    Server: "belongs to no account",
    SharedSecret: "belongs to no account",
}
"""Maps each table with rows that stay to the reason."""
_JOBS = (Batch, Import, StoredResponse, Trial, Video)
_WITH_WORK = (Deployment, Artifact, Agent, File, FileUpload, *_JOBS)
"""Tables with rows that stand for work or bytes. The work or bytes end before the rows are
deleted.
"""

_WITHOUT_REFERENCE = (IdempotencyRecord, RateLevel)
"""Tables that refer to rows of other tables without a foreign key. Their rows are deleted first."""


def owned_by(account_id: str) -> dict[type[Base], ColumnElement[bool]]:
    """Maps each table with rows of accounts to the condition that selects this account's rows."""
    conditions: dict[type[Base], ColumnElement[bool]] = {
        table: table.__table__.c.account_id == account_id for table in OWNED
    }
    artifacts = select(Artifact.id).where(conditions[Artifact])
    uploads = select(Upload.id).where(Upload.artifact_id.in_(artifacts))
    deployments = select(Deployment.id).where(conditions[Deployment])
    versions = select(DeploymentVersion.id).where(conditions[DeploymentVersion])
    batches = select(Batch.id).where(conditions[Batch])
    file_uploads = select(FileUpload.id).where(conditions[FileUpload])
    keys = select(ApiKey.id).where(conditions[ApiKey])
    kept_responses = select(StoredResponse.id).where(conditions[StoredResponse])
    runs = select(Run.id).where(conditions[Run])
    made = [select(Transfer.id).where(conditions[Transfer]), keys]
    return conditions | {
        Account: Account.id == account_id,
        BatchPart: BatchPart.batch_id.in_(batches),
        ConsoleLink: ConsoleLink.key_id.in_(keys),
        ConsoleSession: ConsoleSession.key_id.in_(keys),
        DeploymentChecks: DeploymentChecks.deployment_id.in_(deployments),
        DeploymentEvent: DeploymentEvent.deployment_id.in_(deployments),
        FileUploadPart: FileUploadPart.upload_id.in_(file_uploads),
        IdempotencyRecord: or_(
            IdempotencyRecord.account_id == account_id,
            IdempotencyRecord.object_id == account_id,
            # An operator created these objects for the account.
            *(IdempotencyRecord.object_id.in_(ids) for ids in made),
        ),
        RateLevel: RateLevel.key_id.in_(keys),
        ResponseEvents: ResponseEvents.response_id.in_(kept_responses),
        RunEvent: RunEvent.run_id.in_(runs),
        Upload: Upload.artifact_id.in_(artifacts),
        UploadFile: UploadFile.upload_id.in_(uploads),
        UploadPart: UploadPart.upload_id.in_(uploads),
        VersionComparison: VersionComparison.version_id.in_(versions),
    }


async def erase_jobs(session: Session, account_id: str) -> None:
    """Deletes the batches, imports, stored responses, trials and videos of an account. Other jobs
    end with the object that they belong to.
    """
    rows = owned_by(account_id)
    for table in _JOBS:
        await session.execute(delete(table).where(rows[table]))


async def has_work(session: Session, account_id: str) -> bool:
    """Returns True if an account has rows that stand for work or bytes."""
    rows = owned_by(account_id)
    clauses = [exists(select(table.__table__).where(rows[table])) for table in _WITH_WORK]
    return bool(await session.scalar(select(or_(*clauses))))


async def erase_idempotency(session: Session, account_id: str) -> None:
    """Deletes an account's stored responses of idempotent requests, while the ids of its objects
    are still known.
    """
    condition = owned_by(account_id)[IdempotencyRecord]
    await session.execute(delete(IdempotencyRecord).where(condition))


async def erase_all(session: Session, account_id: str) -> None:
    """Deletes all rows of an account, including the account itself."""
    rows = owned_by(account_id)
    for table in _WITHOUT_REFERENCE:
        await session.execute(delete(table).where(rows[table]))
    of_tables = {table.__table__: condition for table, condition in rows.items()}
    # Deletes rows before the rows that they refer to.
    for table in reversed(Base.metadata.sorted_tables):
        if (condition := of_tables.get(table)) is not None:
            await session.execute(delete(table).where(condition))


async def deleting(session: Session) -> list[str]:
    """Returns the ids of accounts with an unfinished deletion."""
    statement = select(Account.id).where(Account.deleting_at.is_not(None))
    return list(await session.scalars(statement))


async def begun(session: Session, account_id: str) -> Account | None:
    """Returns an account and locks its row. Includes an account that is being deleted."""
    statement = select(Account).where(Account.id == account_id)
    return await session.scalar(statement.with_for_update())


async def ids(
    session: Session, table: type[Base], account_id: str, most: int, *, after: str = ""
) -> list[str]:
    """Returns the ids of at most `most` of an account's rows, from the one after `after`."""
    columns = table.__table__.c
    statement = select(columns.id).where(columns.account_id == account_id, columns.id > after)
    return list(await session.scalars(statement.order_by(columns.id).limit(most)))


async def deployments(session: Session, account_id: str) -> Sequence[Row[str, str | None]]:
    """Returns the columns `id` and `adapter_of` of an account's deployments."""
    statement = select(Deployment.id, Deployment.adapter_of).where(
        Deployment.account_id == account_id
    )
    return (await session.execute(statement)).all()


async def delete_artifacts(session: Session, artifact_ids: Collection[str]) -> None:
    """Deletes the rows of artifacts."""
    await session.execute(delete(Artifact).where(Artifact.id.in_(artifact_ids)))


async def files(session: Session, account_id: str, most: int) -> Sequence[File]:
    """Returns at most `most` of an account's files, in any order."""
    statement = select(File).where(File.account_id == account_id).limit(most)
    return (await session.scalars(statement)).all()


async def delete_file_uploads(session: Session, account_id: str) -> Sequence[FileUploadPart]:
    """Deletes the rows of an account's uploads of files. Returns their parts."""
    rows = owned_by(account_id)
    parts = (await session.scalars(select(FileUploadPart).where(rows[FileUploadPart]))).all()
    for table in (FileUploadPart, FileUpload):
        await session.execute(delete(table).where(rows[table]))
    return parts


async def delete_files(session: Session, file_ids: Collection[str]) -> None:
    """Deletes the rows of files."""
    await session.execute(delete(File).where(File.id.in_(file_ids)))
