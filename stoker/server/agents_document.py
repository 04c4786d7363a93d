"""`GET /v1/agent/openapi.json`: the agents' interface, described by itself, for anyone."""

import functools
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi

from stoker.agents import endpoints
from stoker.server.openapi import write_errors

VERSION = "1.0.0"

router = APIRouter(include_in_schema=False)


@router.get(f"{endpoints.PREFIX}/openapi.json")
async def agents_document() -> dict[str, Any]:
    """The document."""
    return _document()


@functools.cache
def _document() -> dict[str, Any]:
    document = get_openapi(
        title="Stoker agents",
        version=VERSION,
        summary="Agents: deployed chat models with instructions and tools.",
        routes=endpoints.router.routes,
    )
    write_errors(document)
    return document
