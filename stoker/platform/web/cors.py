"""Requests from pages of other origins: which may call, and what they may read of answers."""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from stoker.base.cors_origins import ANY
from stoker.base.errors import InvalidRequestError
from stoker.platform.web.http import error_response

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
EXPOSED = (
    "accept-ranges",
    "allow",
    "content-disposition",
    "content-range",
    "etag",
    "idempotency-replayed",
    "openai-poll-after-ms",
    "retry-after",
    "upload-complete",
    "upload-length",
    "upload-offset",
    "www-authenticate",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-stoker-version",
)
"""Headers of answers that scripts may read, beside those that they always may."""


class CrossOrigin(CORSMiddleware):
    """Starlette's. A refused preflight is answered in our shape.

    Keys come in a header that scripts set themselves, never in cookies: credentials in the
    browser's sense are not allowed, so any origin may be.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            # Whatever is asked for: clients of OpenAI's send a dozen of their own.
            allow_headers=[ANY],
            expose_headers=EXPOSED,
            # Whoever names a page means it for the network that the server is in.
            allow_private_network=True,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        found = super().preflight_response(request_headers)
        if found.status_code == HTTPStatus.OK:
            return found
        if self.is_allowed_origin(request_headers["origin"]):
            method = request_headers["access-control-request-method"][:100]
            message = f"Pages may send {', '.join(METHODS)}, not {method}."
        else:
            message = (
                "Pages of this origin may not call this server. "
                "Its operator can name it in STOKER_CORS_ORIGINS."
            )
        refused = error_response(InvalidRequestError(message))
        for name, value in found.headers.items():
            if name.startswith("access-control-") or name == "vary":
                refused.headers[name] = value
        return refused
