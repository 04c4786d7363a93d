"""Imports every table once, for migrations and for relations between resources."""

from stoker.store.db import Base
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

TABLES: tuple[type[Base], ...] = (
    Account,
    Agent,
    ApiKey,
    Artifact,
    Batch,
    BatchPart,
    Book,
    ConsoleLink,
    ConsoleSession,
    Deployment,
    DeploymentChange,
    DeploymentChecks,
    DeploymentEvent,
    DeploymentVersion,
    File,
    FileUpload,
    FileUploadPart,
    Holding,
    IdempotencyRecord,
    Import,
    Lease,
    Node,
    Price,
    RateLevel,
    ResponseEvents,
    Revision,
    Run,
    RunEvent,
    SchemaSupportRow,
    Server,
    SharedSecret,
    StoredResponse,
    Transfer,
    Trial,
    Upload,
    UploadFile,
    UploadPart,
    UsageCount,
    VersionComparison,
    Video,
)
