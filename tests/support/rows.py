"""Builds table rows directly, without HTTP requests."""

from typing import Any

from stoker.base.ids import Prefix, new_id
from stoker.store import db
from stoker.store.tables.batches import Batch
from stoker.store.tables.imports import Import
from stoker.store.tables.trials import Trial
from stoker.store.tables.videos import Video


def video(account_id: str, deployment_id: str, **columns: Any) -> Video:
    """Returns a queued video job. `columns` override its values."""
    defaults: dict[str, Any] = {
        "id": new_id(Prefix.VIDEO),
        "model": "m",
        "pipeline": "text-to-video",
        "prompt": "a boat",
        "parameters": {},
    }
    return Video(account_id=account_id, deployment_id=deployment_id, **_fresh(defaults, columns))


def batch(account_id: str, deployment_id: str, **columns: Any) -> Batch:
    """Returns a batch that waits for its validation. `columns` override its values."""
    defaults: dict[str, Any] = {
        "id": new_id(Prefix.BATCH),
        "key_id": "key_1",
        "key": "public",
        "state": "validating",
        "endpoint": "/v1/embeddings",
        "input_file_id": "file_1",
        **dict.fromkeys(("total", "completed", "failed"), 0),
        **dict.fromkeys(("input_tokens", "cached_tokens"), 0),
        **dict.fromkeys(("output_tokens", "reasoning_tokens"), 0),
        "usage_rows": {},
        "expires_at": db.now(),
    }
    return Batch(account_id=account_id, deployment_id=deployment_id, **_fresh(defaults, columns))


def trial(account_id: str, deployment_id: str, **columns: Any) -> Trial:
    """Returns a queued trial job. `columns` override its values."""
    defaults: dict[str, Any] = {"id": new_id(Prefix.TRIAL), "rows": []}
    return Trial(account_id=account_id, deployment_id=deployment_id, **_fresh(defaults, columns))


def importing(account_id: str, artifact_id: str, upload_id: str, **columns: Any) -> Import:
    """Returns a queued import job. `columns` override its values."""
    defaults: dict[str, Any] = {
        "id": new_id(Prefix.IMPORT),
        "repo_id": "org/name",
        "revision": "main",
        "commit": "0" * 40,
        "files": [],
        "bytes_total": 0,
    }
    return Import(
        account_id=account_id,
        artifact_id=artifact_id,
        upload_id=upload_id,
        **_fresh(defaults, columns),
    )


def _fresh(own: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "queued",
        "progress": 0.0,
        "tries": 0,
        "losses": 0,
        "created_at": db.now(),
        **own,
        **columns,
    }
