"""Answers that are written before there is an application to ask, in the same shape as its own."""

from email.utils import formatdate
from http import HTTPStatus

import orjson

from stoker.base.errors import StokerError


def answer(error: StokerError, request_id: str) -> bytes:
    """The whole answer, after which the connection is closed."""
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
