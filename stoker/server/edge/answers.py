"""Responses that are written without the application, in the same format as its own."""

from email.utils import formatdate
from http import HTTPStatus

import orjson

from stoker.base.errors import StokerError


def answer(error: StokerError, request_id: str) -> bytes:
    """Returns the complete response. The connection is closed after it."""
    body = orjson.dumps(error.body())
    headers = {
        "date": formatdate(usegmt=True),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": request_id,
        "x-content-type-options": "nosniff",
        **error.headers,
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
