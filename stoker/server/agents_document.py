"""`GET /v1/agent/openapi.json`: serves the OpenAPI document of the agents' interface without a
key.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.openapi.utils import get_openapi

from stoker.platform.web.context import PlatformDep
from stoker.platform.web.prefix import prefix_of
from stoker.server.document import Document
from stoker.server.openapi import write_errors
from stoker.workloads.agents import endpoints

VERSION = "1.0.0"

router = APIRouter(include_in_schema=False)


@router.get(f"{endpoints.PREFIX}/openapi.json")
async def agents_document(request: Request, platform: PlatformDep) -> Response:
    """Returns the OpenAPI document of the agents' interface."""
    return await _DOCUMENT.response(prefix_of(request, platform.settings.public_url))


def _document() -> dict[str, Any]:
    document = get_openapi(
        title="Stoker agents",
        version=VERSION,
        summary="Agents: deployed chat models with instructions and tools.",
        routes=endpoints.router.routes,
    )
    write_errors(document)
    return document


_DOCUMENT = Document(_document)
