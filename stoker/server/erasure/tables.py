"""Which rows of each table belong to an account. A test compares this with the schema."""

from collections.abc import Mapping

from sqlalchemy import ColumnElement, delete, exists, or_, select

from stoker.store.db import Base, Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Agent, Run, RunEvent
from stoker.store.tables.artifacts import Artifact, Upload, UploadFile, UploadPart
from stoker.store.tables.checks import DeploymentChecks
from stoker.store.tables.console import ConsoleLink, ConsoleSession
from stoker.store.tables.deployments import (
    Deployment,
    DeploymentEvent,
    DeploymentVersion,
    VersionComparison,
)
from stoker.store.tables.files import File
from stoker.store.tables.idempotency import IdempotencyRecord
from stoker.store.tables.imports import Import
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.nodes import Lease, Node
from stoker.store.tables.servers import (
    DeploymentChange,
    RateLevel,
    Revision,
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
    Book,
    Deployment,
    DeploymentVersion,
    File,
    Holding,
    Import,
    Run,
    Transfer,
    Trial,
    UsageCount,
    Video,
)
"""Tables whose rows name their account."""
KEPT: Mapping[type[Base], str] = {
    DeploymentChange: "random ids, by which other servers notice that a deployment was deleted",
    Lease: "random ids, removed with the replicas",
    Node: "belongs to no account",
    Price: "belongs to no account",
    Revision: "belongs to no account",
    Server: "belongs to no account",
    SharedSecret: "belongs to no account",
}
"""Tables whose rows stay, and why."""
_JOBS = (Import, Trial, Video)
_WITH_WORK = (Deployment, Artifact, Agent, File, *_JOBS)
"""Tables whose rows stand for work or bytes, which end before the rows do."""

_WITHOUT_REFERENCE = (IdempotencyRecord, RateLevel)
"""Tables that name rows of others without a foreign key: these go first."""


def owned_by(account_id: str) -> dict[type[Base], ColumnElement[bool]]:
    """For each table that has rows of accounts, which of them are this account's."""
    own: dict[type[Base], ColumnElement[bool]] = {
        table: table.__table__.c.account_id == account_id for table in OWNED
    }
    artifacts = select(Artifact.id).where(own[Artifact])
    uploads = select(Upload.id).where(Upload.artifact_id.in_(artifacts))
    deployments = select(Deployment.id).where(own[Deployment])
    versions = select(DeploymentVersion.id).where(own[DeploymentVersion])
    keys = select(ApiKey.id).where(own[ApiKey])
    runs = select(Run.id).where(own[Run])
    made = [select(Transfer.id).where(own[Transfer]), keys]
    return own | {
        Account: Account.id == account_id,
        ConsoleLink: ConsoleLink.key_id.in_(keys),
        ConsoleSession: ConsoleSession.key_id.in_(keys),
        DeploymentChecks: DeploymentChecks.deployment_id.in_(deployments),
        DeploymentEvent: DeploymentEvent.deployment_id.in_(deployments),
        IdempotencyRecord: or_(
            IdempotencyRecord.account_id == account_id,
            IdempotencyRecord.object_id == account_id,
            # An operator made these for the account.
            *(IdempotencyRecord.object_id.in_(ids) for ids in made),
        ),
        RateLevel: RateLevel.key_id.in_(keys),
        RunEvent: RunEvent.run_id.in_(runs),
        Upload: Upload.artifact_id.in_(artifacts),
        UploadFile: UploadFile.upload_id.in_(uploads),
        UploadPart: UploadPart.upload_id.in_(uploads),
        VersionComparison: VersionComparison.version_id.in_(versions),
    }


async def erase_jobs(session: Session, account_id: str) -> None:
    """Delete the jobs of an account that belong to nothing which is ended by itself."""
    rows = owned_by(account_id)
    for table in _JOBS:
        await session.execute(delete(table).where(rows[table]))


async def has_work(session: Session, account_id: str) -> bool:
    """Whether an account has rows that stand for work or bytes."""
    rows = owned_by(account_id)
    found = [exists(select(table.__table__).where(rows[table])) for table in _WITH_WORK]
    return bool(await session.scalar(select(or_(*found))))


async def erase_idempotency(session: Session, account_id: str) -> None:
    """Delete the answers that are remembered for an account, while it is known what it has."""
    condition = owned_by(account_id)[IdempotencyRecord]
    await session.execute(delete(IdempotencyRecord).where(condition))


async def erase_all(session: Session, account_id: str) -> None:
    """Delete all rows of an account, and the account."""
    rows = owned_by(account_id)
    for table in _WITHOUT_REFERENCE:
        await session.execute(delete(table).where(rows[table]))
    of_tables = {table.__table__: condition for table, condition in rows.items()}
    # Rows before those that they refer to.
    for table in reversed(Base.metadata.sorted_tables):
        if (condition := of_tables.get(table)) is not None:
            await session.execute(delete(table).where(condition))


async def deleting(session: Session) -> list[str]:
    """The accounts whose deletion has begun and has not ended."""
    statement = select(Account.id).where(Account.deleting_at.is_not(None))
    return list(await session.scalars(statement))


async def begun(session: Session, account_id: str) -> Account | None:
    """An account, locked: also one that is being deleted."""
    statement = select(Account).where(Account.id == account_id)
    return await session.scalar(statement.with_for_update())


async def ids(session: Session, table: type[Base], account_id: str, most: int) -> list[str]:
    """The ids of some of an account's rows."""
    columns = table.__table__.c
    statement = select(columns.id).where(columns.account_id == account_id)
    return list(await session.scalars(statement.order_by(columns.id).limit(most)))
