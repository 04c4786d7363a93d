"""Client of a Hugging Face hub, or of a server with the same protocol. Lists the files of a
revision and reads their bytes.

The client uses only two requests of that protocol, as described in the hub's OpenAPI document: `GET
/api/models/{repo}/revision/{revision}?blobs=true` and `GET /{repo}/resolve/{commit}/{path}`.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

import httpcore2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stoker.base.errors import (
    CapacityError,
    ForbiddenError,
    HubError,
    NotFoundError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER, FairSemaphore
from stoker.media.hosts import Resolve
from stoker.registry.hub.connections import RETRY_AFTER_S, HubConnections, HubResponse, unavailable

LISTING_BYTES = 4 * 1024 * 1024
"""Maximum size of a repository's file list in bytes."""
ANSWER_S = 20.0
"""Timeout in seconds for a file list and for a connection."""
SILENCE_S = 30.0
"""Longest pause between two pieces of a file, in seconds."""
MOST_RETRY_AFTER_S = 120.0
_TOLD_CHARS = 300
_ERROR_CODE = b"x-error-code"
_GATED = b"GatedRepo"
_NO_REVISION = b"RevisionNotFound"
_NO_FILE = b"EntryNotFound"

log = logging.getLogger(__name__)


class _Lfs(BaseModel):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]


class _Sibling(BaseModel):
    # The field names are those of the protocol.
    rfilename: str
    size: Annotated[int, Field(ge=0)]
    blob_id: Annotated[str | None, Field(alias="blobId", pattern=r"^[0-9a-f]{40}$")] = None
    lfs: _Lfs | None = None


class _Listing(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sha: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    siblings: list[_Sibling]


@dataclass(frozen=True, kw_only=True)
class HubFile:
    path: str
    size: int
    sha256: str | None
    """SHA-256 of a file in large file storage."""
    git_sha1: str | None
    """Git's SHA-1 of any other file's blob. If both digests are None, the hub reports none."""


@dataclass(frozen=True)
class Snapshot:
    """A revision, resolved to its commit and files."""

    commit: str
    files: list[HubFile]


class Hub:
    """
    Args:
        endpoint: address of the hub, with or without a path.
        token: the operator's token, for requests without their own token.
        private_hosts: hosts, in addition to the endpoint's own, with addresses that need not be
            global; see `HostRule`.
        concurrency: maximum number of lists requested at once, shared fairly among accounts.
            Further requests wait, and their deadline runs.
        resolve: resolves host and port to addresses. Raises OSError if the host has none.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        token: str | None = None,
        private_hosts: Sequence[str] = (),
        concurrency: int = 16,
        answer_s: float = ANSWER_S,
        silence_s: float = SILENCE_S,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Raises ValueError if a host entry is malformed, or the endpoint is not a valid
        address.
        """
        self.endpoint = endpoint.rstrip("/")
        self._token = token
        self._answer_s = answer_s
        self._slots = FairSemaphore(concurrency)
        self._connections = HubConnections(
            self.endpoint,
            private_hosts=private_hosts,
            kept=concurrency,
            answer_s=answer_s,
            silence_s=silence_s,
            resolve=resolve,
            ssl_context=ssl_context,
        )

    async def snapshot(self, repo_id: str, revision: str, token: str | None) -> Snapshot:
        """Returns the current commit of a revision, and its files.

        Raises `NotFoundError`, `ForbiddenError` and `HubError`. Raises `CapacityError` if a retry
        may succeed.
        """
        token = token or self._token
        path = f"/api/models/{quote(repo_id)}/revision/{quote(revision, safe='')}?blobs=true"
        try:
            async with (
                asyncio.timeout(self._answer_s),
                self._slots.hold(CURRENT_CALLER.get().account),
                self._connections.get(path, token) as answer,
            ):
                if answer.status != 200:
                    raise self._refused(answer, repo_id, revision, has_token=token is not None)
                content = await _whole(answer)
        except TimeoutError as error:
            raise unavailable("did not answer in time") from error
        try:
            listing = await asyncio.to_thread(_Listing.model_validate_json, content)
        except ValidationError as error:
            log.info("hub's list of files could not be parsed", extra={"cause": str(error)[:500]})
            raise HubError(
                "The hub's list of files is invalid: it needs the commit (sha) and the files "
                "(siblings) with names and sizes."
            ) from error
        return Snapshot(listing.sha, [_file(sibling) for sibling in listing.siblings])

    @contextlib.asynccontextmanager
    async def content(
        self,
        repo_id: str,
        commit: str,
        file: HubFile,
        *,
        start: int,
        end: int,
        token: str | None,
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Yields exactly the bytes of a file from `start` to `end`.

        Raises the same errors as `snapshot`, also if the hub sends other bytes than requested.
        """
        token = token or self._token
        is_whole = (start, end) == (0, file.size)
        extra = [] if is_whole else [("Range", f"bytes={start}-{end - 1}")]
        path = f"/{quote(repo_id)}/resolve/{commit}/{quote(file.path)}"
        async with self._connections.get(path, token, extra, commit=commit) as answer:
            if answer.status not in (200, 206):
                raise self._refused(answer, repo_id, commit, has_token=token is not None)
            _check_range(answer, file, start, end)
            yield _counted(answer.response, file.path, end - start)

    async def close(self) -> None:
        await self._connections.close()

    def _refused(
        self, answer: HubResponse, repo_id: str, revision: str, *, has_token: bool
    ) -> StokerError:
        """Returns the error for a response that does not carry the requested bytes."""
        status, code = answer.status, answer.headers.get(_ERROR_CODE, b"")
        if passing := _passing(answer):
            return passing
        if code == _NO_FILE:
            return HubError(
                "The hub no longer has a file that was in its list. Start the import again."
            )
        if code == _GATED or status == 403:
            how = (
                "The token has no access to it. Accept its terms as the token's owner"
                if has_token
                else "Accept its terms, and send a token of an account that accepted them"
            )
            return ForbiddenError(
                f"The repository {repo_id} is gated. {how} ({self.endpoint}/{repo_id})."
            )
        if code == _NO_REVISION:
            return NotFoundError(
                f"The repository {repo_id} has no revision '{revision}': no such branch, tag or "
                "commit.",
                code="revision_not_found",
                param="revision",
            )
        if status in (401, 404):
            hint = (
                "or the token is invalid or has no access to it"
                if has_token
                else "or it is private and needs a token"
            )
            return NotFoundError(
                f"{self.endpoint} has no model repository {repo_id}, {hint}.",
                code="repository_not_found",
                param="repo_id",
            )
        return HubError(f"The hub answered with status {status}.")


def _file(one: _Sibling) -> HubFile:
    if one.lfs:
        return HubFile(path=one.rfilename, size=one.lfs.size, sha256=one.lfs.sha256, git_sha1=None)
    return HubFile(path=one.rfilename, size=one.size, sha256=None, git_sha1=one.blob_id)


def _passing(answer: HubResponse) -> CapacityError | None:
    """Returns an error if the failure is temporary, otherwise None."""
    status = answer.status
    if status == 429 or status >= 500:
        return unavailable(f"answers {status}", _retry_after(answer))
    if not answer.is_own:
        # The signature may have expired. The next redirect has a new one.
        return unavailable(f"redirects to a host that answers {status}")
    return None


def _retry_after(answer: HubResponse) -> float:
    header = answer.headers.get(b"retry-after", b"")
    if header.isdigit() and len(header) < 6:
        return min(float(header), MOST_RETRY_AFTER_S)
    return RETRY_AFTER_S


async def _whole(answer: HubResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.response.aiter_stream():
        body += chunk
        if len(body) > LISTING_BYTES:
            raise HubError(f"The hub's list of files has more than {LISTING_BYTES} bytes.")
    return bytes(body)


def _check_range(answer: HubResponse, file: HubFile, start: int, end: int) -> None:
    """Raises `HubError` if the response is not for these bytes of a file of this size."""
    headers = answer.headers
    if answer.status == 206:
        expected = f"bytes {start}-{end - 1}/{file.size}".encode()
        if headers.get(b"content-range") != expected:
            raise _lied(file.path)
    elif (start, end) != (0, file.size):
        raise HubError("The hub, or a host that it redirects to, does not support range requests.")
    length = headers.get(b"content-length")
    if length is not None and length != str(end - start).encode():
        raise _lied(file.path)


async def _counted(response: httpcore2.Response, path: str, expected: int) -> AsyncGenerator[bytes]:
    received = 0
    async for chunk in response.aiter_stream():
        received += len(chunk)
        if received > expected:
            raise _lied(path)
        yield chunk
    if received < expected:
        raise unavailable(f"stopped before the end of {_shown(path)}")


def _lied(path: str) -> HubError:
    return HubError(
        f"The size of {_shown(path)} on the hub differs from its list of files. "
        "Start the import again.",
        code="hub_mismatch",
    )


def _shown(path: str) -> str:
    return path[:_TOLD_CHARS]
