"""Uploads a file: small ones in one request, others in parts, which a repeated push continues."""

import contextlib
import hashlib
import json
import mimetypes
import time
import uuid
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from .client import Client
from .errors import DIGEST_MISMATCH, ApiError, StokerError, WrongUseError
from .listening import PushReports, PushState
from .request import ApiRequest, Files, JsonObject, quoted
from .retry import Retry

FILES, UPLOADS = "/v1/files", "/v1/uploads"
PART_BYTES = 16 << 20
ANY_TYPE = "application/octet-stream"
_ATTEMPTS = 20
"""Maximum number of earlier uploads of the same file that are looked up."""


def upload_file(
    client: Client,
    source: Path,
    *,
    purpose: str,
    expires_after_s: int | None,
    on_progress: Callable[[PushState], None] | None,
    retry: Retry,
) -> JsonObject:
    """Uploads a file and returns it as the server describes it.

    Raises `WrongUseError` if the file is missing or empty, and `StokerError`.
    """
    if not source.is_file():
        raise WrongUseError(f"There is no file {source}.")
    size = source.stat().st_size
    if not size:
        raise WrongUseError(f"The file {source} is empty.")
    reports = PushReports(size, on_progress)
    retry.on_wait = lambda why: reports.note(f"{why} Retrying.")
    expiry = {"anchor": "created_at", "seconds": expires_after_s} if expires_after_s else None
    if size > PART_BYTES:
        asked: JsonObject = {
            "filename": source.name,
            "purpose": purpose,
            "bytes": size,
            "mime_type": mimetypes.guess_type(source.name)[0] or ANY_TYPE,
            "expires_after": expiry,
        }
        return _in_parts(client, source, asked, reports, retry)
    fields = {f"expires_after[{name}]": str(value) for name, value in (expiry or {}).items()}
    fields["purpose"] = purpose
    file = _posted(client, FILES, [("file", source)], fields, retry)
    reports.advance(size)
    return file


def _in_parts(
    client: Client, source: Path, asked: JsonObject, reports: PushReports, retry: Retry
) -> JsonObject:
    place, parts = upload = _opened(client, source, asked, reports, retry)
    try:
        return _sent(client, source, upload, reports, retry)
    except ApiError as error:
        is_wrong = error.code == DIGEST_MISMATCH
        if is_wrong or not error.is_passing:
            # Otherwise its bytes would count for the account for an hour.
            with contextlib.suppress(Exception):
                client.post(f"{place}/cancel")
        if not (is_wrong and parts):
            raise
    except (KeyboardInterrupt, StokerError):
        reports.note("Interrupted. Push the file again within an hour to continue.")
        raise
    reports.note("The file differs from the parts on the server. Starting again.")
    reports.advance(-reports.sent_bytes)
    fresh = client.create(UPLOADS, asked, retry)
    return _sent(client, source, (f"{UPLOADS}/{quoted(fresh['id'])}", []), reports, retry)


def _sent(
    client: Client,
    source: Path,
    upload: tuple[str, Sequence[str]],
    reports: PushReports,
    retry: Retry,
) -> JsonObject:
    """Sends the missing parts of a file and joins all of them. The server compares their MD5.

    Args:
        upload: path of the upload, and ids of the file's first parts, which the server has.
    """
    place, parts = upload[0], [*upload[1]]
    digest = hashlib.md5(usedforsecurity=False)
    with source.open("rb") as opened:
        number = 0
        while content := opened.read(PART_BYTES):
            digest.update(content)
            number += 1
            if number > len(parts):
                part = _posted(client, f"{place}/parts", [("data", content)], {}, retry)
                parts.append(part["id"])
                reports.advance(len(content))
    body: JsonObject = {"part_ids": parts, "md5": digest.hexdigest()}
    return retry.run(lambda: client.post(f"{place}/complete", body))["file"]


def _opened(
    client: Client, source: Path, asked: JsonObject, reports: PushReports, retry: Retry
) -> tuple[str, list[str]]:
    """Returns the path of an upload of this file, and the ids of its received parts.

    The key of the request depends on the file's path, size and time of change. So the server finds
    the upload that an interrupted push has started, and this client keeps no state.
    """
    changed_ns = source.stat().st_mtime_ns
    identity = json.dumps([str(source.resolve()), changed_ns, asked], sort_keys=True)
    for attempt in range(_ATTEMPTS):
        key = hashlib.sha256(f"{identity}\0{attempt}".encode()).hexdigest()
        request = ApiRequest(
            method="POST", path=UPLOADS, json=asked, headers={"idempotency-key": key}
        )
        upload = retry.run(lambda request=request: client.json(request))
        place = f"{UPLOADS}/{quoted(upload['id'])}"
        try:
            state = retry.run(lambda place=place: client.get(place))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            continue
        status = "expired" if state["expires_at"] <= time.time() else state["status"]
        if status == "pending" and (parts := _usable(state)) is not None:
            if parts:
                received = sum(part["bytes"] for part in state["parts"])
                reports.note(f"Continuing the upload {upload['id']}.")
                reports.advance(received)
            return place, parts
        if status == "pending":
            client.post(f"{place}/cancel")
            reports.note("The earlier upload has other parts. Starting again.")
        elif status == "expired":
            reports.note("The earlier upload has expired. Starting again.")
    return f"{UPLOADS}/{quoted(client.create(UPLOADS, asked, retry)['id'])}", []


def _usable(state: JsonObject) -> list[str] | None:
    """Returns the ids of an upload's parts. None if they are not the first parts of the file."""
    parts: list[JsonObject] = state["parts"]
    left: int = state["bytes"]
    for part in parts:
        if part["bytes"] != min(PART_BYTES, left):
            return None
        left -= part["bytes"]
    return [part["id"] for part in parts]


def _posted(
    client: Client, path: str, files: Files, fields: JsonObject, retry: Retry
) -> JsonObject:
    headers = {"idempotency-key": uuid.uuid4().hex}
    request = ApiRequest(method="POST", path=path, files=files, json=fields, headers=headers)
    return retry.run(lambda: client.json(request))
