# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Methods of resources that are more than one request."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Literal, TypeVar

from ..concurrency import in_thread, sleep
from ..errors import (
    BrokenConnectionError,
    FailedError,
    StokerError,
    WaitTimeoutError,
    WrongUseError,
)
from ..file_upload import upload_file
from ..listening import PushState
from ..models import Artifact, Deployment, File, RunEvent, Version, Video
from ..pushing import push
from ..request import ApiRequest, JsonObject, quoted
from ..response import converted
from ..retry import Retry, RetryAttempts
from .api import Resource
from .operations.agents import RunOperations
from .operations.artifacts import ArtifactOperations
from .operations.deployments import DeploymentOperations
from .operations.media import FileOperations, VideoOperations
from .operations.tasks_images import ImageTasks
from .operations.tasks_sounds import SoundTasks
from .operations.tasks_text import TextTasks
from .operations.versions import VersionOperations

Polled = TypeVar("Polled")

WAIT_S = 600.0
FIRST_POLL_S, LONGEST_POLL_S = 0.2, 2.0
RUN_ENDS = ("run.completed", "run.failed", "run.cancelled")
ENDED_RUNS = ("completed", "failed", "cancelled")


class Tasks(TextTasks, ImageTasks, SoundTasks):
    """Calls of models. Results are plain dicts, as the pipelines of transformers return them."""


class Artifacts(ArtifactOperations):
    def push(
        self,
        source: str | PathLike[str],
        *,
        name: str | None = None,
        pipeline: str | None = None,
        artifact_id: str | None = None,
        parallel: int = 4,
        on_progress: Callable[[PushState], None] | None = None,
    ) -> Artifact:
        """Pushes a model folder, or one GGUF file, and returns the inspected artifact.

        The same call resumes an interrupted push: the server keeps the parts that it received.

        Args:
            name: display name of a new artifact. Default: the name of the folder.
            artifact_id: artifact whose files are replaced.
            parallel: number of parts to send at the same time.
            on_progress: called after each piece that was sent, from several threads, one at a time.
        """
        if artifact_id and (name or pipeline):
            raise WrongUseError("name and pipeline cannot be changed together with artifact_id.")
        retry = Retry(stop=threading.Event())

        def work() -> JsonObject:
            with contextlib.closing(self._api.open_client(parallel)) as client:
                return push(
                    client,
                    Path(source),
                    name=name,
                    pipeline=pipeline,
                    artifact_id=artifact_id,
                    parallel=parallel,
                    on_progress=on_progress,
                    retry=retry,
                )

        return converted(in_thread(work, retry.stop), Artifact)

    def wait(self, artifact_id: str, *, timeout_s: float = WAIT_S) -> Artifact:
        """Waits until an artifact, for example an imported one, is `ready`.

        Raises `FailedError` and `WaitTimeoutError`.
        """

        def is_done(artifact: Artifact) -> bool:
            if artifact.status == "failed":
                why = artifact.failure.message if artifact.failure else "see its import"
                raise FailedError(f"The artifact {artifact.id} failed: {why}")
            return artifact.status == "ready"

        what = f"{artifact_id} did not become ready"
        return polled(lambda: self.get(artifact_id), is_done, what, timeout_s)


class Deployments(DeploymentOperations):
    def wait(
        self,
        deployment_id: str,
        *,
        until: Literal["ready", "idle", "stopped"] = "ready",
        timeout_s: float = WAIT_S,
    ) -> Deployment:
        """Waits until a deployment has a status.

        Raises `FailedError` if the model does not load, and `WaitTimeoutError`. Raises
        `WrongUseError` for `ready` if the deployment is cold or stopped, because nothing loads it.
        """

        def is_done(deployment: Deployment) -> bool:
            if deployment.status == until:
                return True
            if deployment.status == "failed":
                raise FailedError(f"{deployment.model} failed: {deployment.message}")
            if until == "ready":
                _refuse_unloaded(deployment)
            return False

        what = f"{deployment_id} did not become {until}"
        return polled(lambda: self.get(deployment_id), is_done, what, timeout_s)


def _refuse_unloaded(deployment: Deployment) -> None:
    if deployment.desired == "stopped":
        raise WrongUseError(f"{deployment.model} is stopped.", hint="Start the deployment first.")
    if deployment.status == "idle" and deployment.readiness == "cold":
        raise WrongUseError(
            f"{deployment.model} is cold: its first call loads it.",
            hint="Set readiness to warm or hot, or call the model.",
        )


class Versions(VersionOperations):
    def wait(
        self,
        deployment_id: str,
        version_id: str,
        *,
        until: Literal["ready", "live"] = "live",
        timeout_s: float = WAIT_S,
    ) -> Version:
        """Waits until a version has a status. Raises `FailedError` and `WaitTimeoutError`."""

        def is_done(version: Version) -> bool:
            if version.status == "failed":
                raise FailedError(f"The version {version.id} failed: {version.message}")
            return version.status == until

        what = f"{version_id} did not become {until}"
        return polled(lambda: self.get(deployment_id, version_id), is_done, what, timeout_s)


class Videos(VideoOperations):
    def wait(self, video_id: str, *, timeout_s: float = WAIT_S) -> Video:
        """Waits until a video is complete. Raises `FailedError` and `WaitTimeoutError`."""

        def is_done(video: Video) -> bool:
            if video.status == "failed":
                raise FailedError(
                    f"The video failed: {video.error.message if video.error else 'unknown'}"
                )
            return video.status == "completed"

        what = f"{video_id} was not completed"
        return polled(lambda: self.get(video_id), is_done, what, timeout_s)

    def download(
        self,
        video_id: str,
        target: str | PathLike[str],
        *,
        variant: Literal["video", "thumbnail"] = "video",
    ) -> Path:
        """Saves a completed video (MP4), or its thumbnail (WebP). Returns the path.

        The file appears only when complete.
        """
        path = f"/v1/videos/{quoted(video_id)}/content"
        return self._api.save(path, target, {"variant": variant})


class Files(FileOperations):
    def create(
        self,
        source: str | PathLike[str],
        *,
        purpose: Literal["batch", "user_data"],
        expires_after_s: int | None = None,
        on_progress: Callable[[PushState], None] | None = None,
    ) -> File:
        """Uploads a file. A large file is sent in parts, and each part is retried.

        Args:
            expires_after_s: seconds until the server deletes the file. Default: 30 days for
                `batch`, never for `user_data`.
            on_progress: called after each part.
        """
        retry = Retry(stop=threading.Event())

        def work() -> JsonObject:
            with contextlib.closing(self._api.open_client(1)) as client:
                return upload_file(
                    client,
                    Path(source),
                    purpose=purpose,
                    expires_after_s=expires_after_s,
                    on_progress=on_progress,
                    retry=retry,
                )

        return converted(in_thread(work, retry.stop), File)

    def download(self, file_id: str, target: str | PathLike[str]) -> Path:
        """Saves a file, which appears only when complete. Returns its path."""
        return self._api.save(f"/v1/files/{quoted(file_id)}/content", target, {})


class Runs(RunOperations):
    def events(self, agent_id: str, run_id: str, *, after: int = 0) -> Iterator[RunEvent]:
        """Yields the events of a run, past ones first, until the run ends.

        Reconnects if the connection breaks. If a run requires an action, submit the tool outputs
        in the loop: the stream continues.

        Args:
            after: `sequence` of the last event to skip.
        """
        attempts, was_ended = self._attempts(), False
        while True:
            is_silent = True
            try:
                for data in self._api.transport.events(self._stream(agent_id, run_id, after)):
                    event = converted(data, RunEvent)
                    is_silent, attempts, after = False, self._attempts(), event.sequence
                    yield event
                    if event.type in RUN_ENDS:
                        return
                if is_silent and was_ended:
                    return
                # Events may follow until a stream that began after the run's end has none.
                was_ended = (self.get(agent_id, run_id)).status in ENDED_RUNS
                if not was_ended:
                    raise BrokenConnectionError("The stream of events ended before the run.")
            except StokerError as error:
                delay = attempts.delay_s(error)
                if delay is None:
                    raise
                sleep(delay)

    def _attempts(self) -> RetryAttempts:
        return RetryAttempts(self._api.limits, is_repeatable=True)

    def _stream(self, agent_id: str, run_id: str, after: int) -> ApiRequest:
        path = f"/v1/agent/{quoted(agent_id)}/runs/{quoted(run_id)}/events"
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        return self._api.request("GET", path, headers=headers)


class Events(Resource):
    """Changes of all resources that the key can see."""

    def follow(self, *, accounts: str | None = None) -> Iterator[tuple[str, JsonObject]]:
        """Yields the names and the data of changes until the connection ends.

        Args:
            accounts: operators only: account ids, separated by commas.
        """
        query = {"accounts": accounts} if accounts else {}
        request = self._api.request("GET", "/v1/events", params=query)
        yield from self._api.transport.named_events(request)


def polled(
    get: Callable[[], Polled],
    is_done: Callable[[Polled], bool],
    what: str,
    timeout_s: float,
) -> Polled:
    """Polls a resource until it is done. Raises `WaitTimeoutError`.

    Args:
        what: beginning of the error's message.
    """
    deadline, delay = time.monotonic() + timeout_s, FIRST_POLL_S
    while True:
        value = get()
        if is_done(value):
            return value
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeoutError(f"{what} within {timeout_s:g} seconds.")
        sleep(min(delay, left))
        delay = min(delay * 1.5, LONGEST_POLL_S)
