"""Reads errors of all endpoints."""

from typing import Any

import httpx


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Returns the error of a response. In the format of Text Embeddings Inference, the message is
    next to the other fields.
    """
    body = response.json()
    error = body.pop("error")
    return {**body, "message": error} if isinstance(error, str) else error
