"""Rows of tables, as nobody has asked for them over HTTP."""

from typing import Any

from stoker.base.ids import Prefix, new_id
from stoker.store import db
from stoker.store.tables.imports import Import
from stoker.store.tables.trials import Trial
from stoker.store.tables.videos import Video


def video(account_id: str, deployment_id: str, **columns: Any) -> Video:
    """A job that waits to be taken, but for `columns`."""
    own: dict[str, Any] = {
        "id": new_id(Prefix.VIDEO),
        "model": "m",
        "pipeline": "text-to-video",
        "prompt": "a boat",
        "parameters": {},
    }
    return Video(account_id=account_id, deployment_id=deployment_id, **_fresh(own, columns))


def trial(account_id: str, deployment_id: str, **columns: Any) -> Trial:
    """A job that waits to be taken, but for `columns`."""
    own: dict[str, Any] = {"id": new_id(Prefix.TRIAL), "rows": []}
    return Trial(account_id=account_id, deployment_id=deployment_id, **_fresh(own, columns))


def importing(account_id: str, artifact_id: str, upload_id: str, **columns: Any) -> Import:
    """A job that waits to be taken, but for `columns`."""
    own: dict[str, Any] = {
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
        **_fresh(own, columns),
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
