"""The path that a reverse proxy puts before all of ours, as in `https://models.example/stoker`."""

import re
from urllib.parse import urlsplit

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-forwarded-prefix"
_SANE = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){1,8}")


def prefix_of(request: Request, public_url: str | None) -> str:
    """Returns the prefix without a slash at its end, or nothing.

    The public address decides. Without one it is what the proxy says in X-Forwarded-Prefix, as
    Traefik does. Pages and documents are made of it for the client that sent it, and nothing else.
    """
    if public_url:
        return urlsplit(public_url).path.rstrip("/")
    given = request.headers.get(HEADER, "").partition(",")[0].strip().rstrip("/")
    if _SANE.fullmatch(given) and ".." not in given:
        return given
    return str(request.scope.get("root_path", "")).rstrip("/")


def base_url(request: Request, public_url: str | None) -> str:
    """Returns the address of this server as the client sees it, without a slash at its end."""
    if public_url:
        return public_url.rstrip("/")
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return origin + prefix_of(request, public_url)


class PathPrefix:
    """Takes the path of the public address away, for proxies that leave it in requests.

    A header does not decide this: a client could get around rules that a proxy has for paths.
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
