"""Path prefix that a reverse proxy puts before all paths, as in `https://models.example/stoker`."""

import re
from urllib.parse import urlsplit

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-forwarded-prefix"
_SANE = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){1,8}")


def prefix_of(request: Request, public_url: str | None) -> str:
    """Returns the prefix without a trailing slash, or an empty string.

    The public address decides. Without one, the proxy's X-Forwarded-Prefix is used, as sent by
    Traefik. The prefix is used only in pages and documents for the client that sent it.
    """
    if public_url:
        return urlsplit(public_url).path.rstrip("/")
    forwarded = request.headers.get(HEADER, "").partition(",")[0].strip().rstrip("/")
    if _SANE.fullmatch(forwarded) and ".." not in forwarded:
        return forwarded
    return str(request.scope.get("root_path", "")).rstrip("/")


def base_url(request: Request, public_url: str | None) -> str:
    """Returns the address of this server as the client sees it, without a trailing slash."""
    if public_url:
        return public_url.rstrip("/")
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return origin + prefix_of(request, public_url)


class PathPrefix:
    """Middleware that removes the public address's path, for proxies that leave it in requests.

    A header does not decide this, because a client could then bypass a proxy's rules for paths.
    """

    def __init__(self, app: ASGIApp, public_url: str) -> None:
        self.app = app
        self._prefix = urlsplit(public_url).path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] == "http" and path.startswith(f"{self._prefix}/"):
            scope = {**scope, "path": path.removeprefix(self._prefix)}
            raw: bytes | None = scope.get("raw_path")
            if raw is not None:
                scope["raw_path"] = raw.removeprefix(self._prefix.encode())
        await self.app(scope, receive, send)
