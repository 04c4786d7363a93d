"""Table of the limits of an account, one line each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stoker.base.config import Settings

GIB = 1 << 30
MOST = 1 << 60
"""Maximum value of any limit."""


class Quota(StrEnum):
    STORAGE_BYTES = "storage_bytes"
    UPLOAD_SESSIONS = "upload_sessions"
    ARTIFACTS = "artifacts"
    DEPLOYMENTS = "deployments"
    KEYS = "keys"
    AGENTS = "agents"
    RUNS = "runs"
    FILES = "files"
    VIDEOS = "videos"
    BATCHES = "batches"


@dataclass(frozen=True)
class Limit:
    counted: str
    """Name of the counted objects, phrased to follow a number."""
    default: Callable[[Settings], int]
    """Returns the default limit from the settings. 0 means no limit."""
    remedy: str
    """Advice on how to make room."""


LIMITS: Mapping[Quota, Limit] = {
    Quota.STORAGE_BYTES: Limit(
        "bytes of artifacts, open upload sessions, files, merged adapters, checks, "
        "agents, inputs of runs and stored responses",
        lambda settings: int(settings.quota_storage_gib * GIB),
        "Delete some of these, or abandon upload sessions",
    ),
    Quota.UPLOAD_SESSIONS: Limit(
        "open upload sessions",
        lambda settings: settings.quota_upload_sessions,
        "Complete or abandon some",
    ),
    Quota.ARTIFACTS: Limit("artifacts", lambda settings: settings.quota_artifacts, "Delete some"),
    Quota.DEPLOYMENTS: Limit(
        "deployments", lambda settings: settings.quota_deployments, "Delete some"
    ),
    Quota.KEYS: Limit("API keys", lambda settings: settings.quota_keys, "Revoke some"),
    Quota.AGENTS: Limit("agents", lambda settings: settings.quota_agents, "Delete some"),
    Quota.RUNS: Limit("runs of agents", lambda settings: settings.quota_runs, "Delete some"),
    Quota.FILES: Limit(
        "files",
        lambda settings: settings.quota_files,
        "Delete some, or wait until they expire",
    ),
    Quota.VIDEOS: Limit("videos", lambda settings: settings.quota_videos, "Delete some"),
    Quota.BATCHES: Limit(
        "unfinished batches",
        lambda settings: settings.quota_batches,
        "Cancel some, or wait until they end",
    ),
}
