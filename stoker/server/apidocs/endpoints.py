"""`/docs`: serves Swagger UI over `/openapi.json`, without a key."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

STATIC = "/docs/static"
_HERE = Path(__file__).parent
_PAGE = (_HERE / "page.html").read_text("utf-8")
_HEADERS = {
    # The page may load only its own files. Anything in a description is shown as text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)

files = StaticFiles(directory=_HERE / "static")


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Returns the Swagger UI page."""
    return HTMLResponse(_PAGE, headers=_HEADERS)
