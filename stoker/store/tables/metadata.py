"""Every table, imported once, for migrations and for relations between resources."""

from stoker.accounts.models import Account
from stoker.agents.models import Agent, Run, RunEvent
from stoker.artifacts.models import Artifact, Upload, UploadFile, UploadPart
from stoker.db import Base
from stoker.deployments.models import Deployment, DeploymentEvent
from stoker.files.models import File
from stoker.idempotency import IdempotencyRecord
from stoker.keys.models import ApiKey
from stoker.usage.models import Book, Holding, Price, Transfer, UsageCount
from stoker.videos.models import Video

TABLES: tuple[type[Base], ...] = (
    Account,
    Agent,
    ApiKey,
    Artifact,
    Book,
    Deployment,
    DeploymentEvent,
    File,
    Holding,
    IdempotencyRecord,
    Price,
    Run,
    RunEvent,
    Transfer,
    Upload,
    UploadFile,
    UploadPart,
    UsageCount,
    Video,
)
