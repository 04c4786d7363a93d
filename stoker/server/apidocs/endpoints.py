"""`/docs`: Swagger UI over `/openapi.json`, for anyone, without a key."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

STATIC = "/docs/static"

router = APIRouter(include_in_schema=False)

files = StaticFiles(directory=Path(__file__).parent / "static")


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The page."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Stoker API",
        swagger_js_url=f"{STATIC}/swagger-ui-bundle.js",
        swagger_css_url=f"{STATIC}/swagger-ui.css",
        swagger_favicon_url=f"{STATIC}/favicon-32x32.png",
    )
