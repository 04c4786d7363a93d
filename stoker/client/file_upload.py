"""Uploads a file: small ones in one request, others in parts."""

import contextlib
import mimetypes
import uuid
from collections.abc import Callable
from pathlib import Path

from .client import Client
from .errors import WrongUseError
from .listening import PushReports, PushState
from .request import ApiRequest, Files, JsonObject, quoted
from .retry import Retry

FILES, UPLOADS = "/v1/files", "/v1/uploads"
PART_BYTES = 16 << 20
ANY_TYPE = "application/octet-stream"


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
    place = f"{UPLOADS}/{quoted(client.create(UPLOADS, asked, retry)['id'])}"
    try:
        parts: list[str] = []
        with source.open("rb") as opened:
            while content := opened.read(PART_BYTES):
                part = _posted(client, f"{place}/parts", [("data", content)], {}, retry)
                parts.append(part["id"])
                reports.advance(len(content))
        done = retry.run(lambda: client.post(f"{place}/complete", {"part_ids": parts}))
    except BaseException:
        # Otherwise its bytes would count for the account for an hour.
        with contextlib.suppress(Exception):
            client.post(f"{place}/cancel")
        raise
    return done["file"]


def _posted(
    client: Client, path: str, files: Files, fields: JsonObject, retry: Retry
) -> JsonObject:
    headers = {"idempotency-key": uuid.uuid4().hex}
    request = ApiRequest(method="POST", path=path, files=files, json=fields, headers=headers)
    return retry.run(lambda: client.json(request))
