"""HTTP routes of the console's pages."""

from fastapi import APIRouter, Request, Response

from stoker.base.errors import NotFoundError
from stoker.platform.web.prefix import HEADER, prefix_of
from stoker.server.console.built import INDEX, ConsolePage
from stoker.server.console.context import ContextDep

ASSETS = "assets/"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CSP,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def root(request: Request) -> Response:
    """Redirects browsers to the console. Other clients receive a 404."""
    if "text/html" not in request.headers.get("accept", ""):
        raise NotFoundError(f"No such path: {request.url.path}", code="not_found")
    return _to_console()


@router.api_route("/console", methods=["GET", "HEAD"])
async def console() -> Response:
    """Redirects the address without a trailing slash."""
    return _to_console()


@router.api_route("/console/{path:path}", methods=["GET", "HEAD"])
async def page(path: str, request: Request, context: ContextDep) -> Response:
    """Returns a file of the console. All other paths return the document, which handles them
    itself.
    """
    file = await context.pages.file(path)
    if path.startswith(ASSETS):
        if file is None:
            raise NotFoundError("No such file of the console", code="not_found")
        # The file names contain a digest of the content.
        return _answer(request, file, "public, max-age=31536000, immutable")
    if file is None or path == INDEX:
        file = await context.pages.document(prefix_of(request, context.settings.public_url))
        return _answer(request, file, "no-cache", vary=f"accept-encoding, {HEADER}")
    return _answer(request, file, "no-cache")


def _to_console() -> Response:
    # Relative, because a proxy may have added a path prefix.
    return Response(status_code=307, headers={"location": "console/"})


def _answer(
    request: Request, page: ConsolePage, caching: str, vary: str = "accept-encoding"
) -> Response:
    is_packed = page.packed is not None and _takes_gzip(request)
    etag = f'"{page.etag}{"-gz" if is_packed else ""}"'
    headers = _HEADERS | {"cache-control": caching, "etag": etag, "vary": vary}
    known = [
        etag_value.strip() for etag_value in request.headers.get("if-none-match", "").split(",")
    ]
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    content = page.content
    if is_packed and page.packed is not None:
        content, headers["content-encoding"] = page.packed, "gzip"
    return Response(content, media_type=page.media_type, headers=headers)


def _takes_gzip(request: Request) -> bool:
    for coding in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = coding.partition(";")
        if name.strip().lower() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
