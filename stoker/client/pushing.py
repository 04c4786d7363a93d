"""Pushes a folder in one call, for the library."""

from collections.abc import Callable
from pathlib import Path

from .client import Client
from .errors import FailedError
from .listening import PushReports, PushState
from .push import Uploader
from .request import JsonObject
from .retry import Retry
from .selection import default_name, select


def push(
    client: Client,
    source: Path,
    *,
    name: str | None,
    pipeline: str | None,
    artifact_id: str | None,
    parallel: int,
    on_progress: Callable[[PushState], None] | None,
    retry: Retry,
) -> JsonObject:
    """Pushes a folder and returns the artifact. Resumes an interrupted push of the same files.

    Raises `StokerError` if the files are not a complete model, and `FailedError` if the server
    rejects them.
    """
    selection = select(source)
    reports = PushReports(selection.size, on_progress)
    retry.on_wait = lambda why: reports.note(f"{why} Retrying.")
    uploader = Uploader(client, selection.files, reports, parallel=parallel, retry=retry)
    session = uploader.session(name or default_name(source), pipeline, artifact_id)
    reports.advance(uploader.held_bytes(session))
    uploader.send(session)
    artifact = uploader.complete(session)
    if failure := artifact["failure"]:
        raise FailedError(
            f"The server rejected the files: {failure['message']} ({failure['code']})",
            hint="The upload is kept. Correct the folder and push again: only changed files are "
            "sent.",
        )
    return artifact
