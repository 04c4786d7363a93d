"""Starts, follows and cancels imports of models from a hub."""

import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.cli import output
from stoker.client.client import Client, JsonObject, Retry, quoted
from stoker.client.errors import ApiError, StokerError, WrongUseError
from stoker.client.upload_session import ARTIFACTS

if TYPE_CHECKING:
    from rich.progress import Progress

SCHEME = "hf:"
POLL_S = 0.5
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_REVISION = r"[A-Za-z0-9][A-Za-z0-9._/+-]*"
_REFERENCE = re.compile(rf"(?P<repo>{_NAME}(/{_NAME})?)(@(?P<revision>{_REVISION}))?")
"""The server accepts the same names and revisions."""
_RUNNING = ("queued", "in_progress")


@dataclass(frozen=True)
class Reference:
    """A model on a hub, written `hf:org/name@revision`."""

    repo_id: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Parses a reference. Raises `WrongUseError`."""
        match = _REFERENCE.fullmatch(text.removeprefix(SCHEME))
        if match is None:
            raise WrongUseError(
                f"'{text}' is not a hub reference.", hint="Use hf:org/name or hf:org/name@REVISION."
            )
        return cls(match["repo"], match["revision"])

    @property
    def name(self) -> str:
        """Model name without its owner."""
        return self.repo_id.rpartition("/")[2]


def token_from(variable: str | None) -> str | None:
    """Returns the token in an environment variable. Raises `WrongUseError` if it is not set."""
    if variable is None:
        return None
    if token := os.environ.get(variable):
        return token
    raise WrongUseError(f"The environment variable {variable} is not set.")


def import_new(
    server: Client,
    reference: Reference,
    *,
    name: str | None = None,
    pipeline: str | None = None,
    token: str | None = None,
    gguf: str | None = None,
) -> JsonObject:
    """Imports a model into a new artifact."""
    wish = {"display_name": name or reference.repo_id}
    wish |= {"pipeline": pipeline} if pipeline else {}
    return _followed(server, _begun_new(server, wish, reference, token, gguf))


def import_newer(
    server: Client,
    reference: Reference,
    artifact: JsonObject,
    *,
    token: str | None = None,
    gguf: str | None = None,
) -> JsonObject | None:
    """Imports the hub's current commit as a new artifact.

    Returns None if the commit has not changed.
    """
    wish = {"display_name": artifact["display_name"], "pipeline": artifact["pipeline"]}
    begun = _begun_new(server, wish, reference, token, gguf)
    import_job, path = begun["import"], f"{ARTIFACTS}/{quoted(begun['id'])}"
    if import_job["commit"] == artifact["origin"]["commit"]:
        server.delete(f"{path}/imports/{quoted(import_job['id'])}")
        server.delete(path)
        return None
    return _followed(server, begun)


def imported(
    server: Client,
    artifact_id: str,
    reference: Reference,
    *,
    token: str | None = None,
    gguf: str | None = None,
) -> JsonObject:
    """Imports into an artifact and returns it once done.

    Raises `StokerError` if the import fails.
    """
    return _followed(server, _begun(server, artifact_id, reference, token, gguf))


def _begun_new(
    server: Client, wish: JsonObject, reference: Reference, token: str | None, gguf: str | None
) -> JsonObject:
    """Creates an artifact and starts its import. Deletes the artifact if that fails."""
    made = server.create(ARTIFACTS, wish)
    try:
        return _begun(server, made["id"], reference, token, gguf)
    except ApiError:
        server.delete(f"{ARTIFACTS}/{quoted(made['id'])}")
        raise


def _begun(
    server: Client, artifact_id: str, reference: Reference, token: str | None, gguf: str | None
) -> JsonObject:
    """Starts an import and returns the artifact."""
    body = {
        "repo_id": reference.repo_id,
        "revision": reference.revision,
        "token": token,
        "gguf": gguf,
    }
    wish = {name: value for name, value in body.items() if value is not None}
    return server.create(f"{ARTIFACTS}/{quoted(artifact_id)}/imports", wish)["artifact"]


def _followed(server: Client, artifact: JsonObject) -> JsonObject:
    """Waits for an import and returns the artifact. Raises `StokerError` if it fails."""
    artifact_id, begun = artifact["id"], artifact["import"]
    path = f"{ARTIFACTS}/{quoted(artifact_id)}"
    output.say(f"Importing {begun['repo_id']}, commit {begun['commit'][:12]}.")
    retry = Retry()
    with _bar(begun["bytes_total"]) as progress:
        try:
            while _is_running(artifact, begun["id"]):
                time.sleep(POLL_S)
                artifact = retry.run(lambda: server.get(path))
                if artifact["import"]:
                    progress.update(progress.task_ids[0], completed=artifact["import"]["bytes"])
        except KeyboardInterrupt:
            progress.console.print(
                f"The import continues. Use 'stoker artifacts show {artifact_id}' to see its "
                f"progress, and 'stoker artifacts cancel {artifact_id}' to cancel it.",
                style="yellow",
                soft_wrap=True,
            )
            raise
    _refuse_failed(artifact, begun["id"])
    return artifact


def _is_running(artifact: JsonObject, import_id: str) -> bool:
    import_job = artifact["import"]
    return bool(import_job) and import_job["id"] == import_id and import_job["status"] in _RUNNING


def _refuse_failed(artifact: JsonObject, import_id: str) -> None:
    import_job = artifact["import"]
    if not import_job or import_job["id"] != import_id:
        raise StokerError("The import was cancelled or replaced by another import.")
    if import_job["status"] == "failed":
        error = import_job["error"]
        raise StokerError(f"The import failed: {error['message']} ({error['code']})")


@contextmanager
def _bar(total: int) -> Generator["Progress", None, None]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(stderr=True)) as bar:
        bar.add_task("", total=total)
        yield bar
