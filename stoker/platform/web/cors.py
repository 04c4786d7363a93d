"""Requests from pages of other origins: which origins may call, and which response headers they may
read.
"""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from stoker.base.cors_origins import ANY
from stoker.base.errors import InvalidRequestError
from stoker.platform.web.error_handlers import error_response

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
EXPOSED = (
    "accept-ranges",
    "allow",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "content-disposition",
    "content-range",
    "etag",
    "idempotency-replayed",
    "openai-poll-after-ms",
    "request-id",
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
    "x-stoker-dropped",
    "x-stoker-service-tier",
    "x-stoker-version",
)
"""Response headers that scripts may read, in addition to the always readable ones."""


class CrossOrigin(CORSMiddleware):
    """Starlette's CORS middleware with refused preflights in Stoker's error format.

    Scripts set keys in a header, and cookies never carry them. Credentials in the browser's sense
    are not allowed, so any origin may be allowed.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            # Allow any header: OpenAI's clients send a dozen custom headers.
            allow_headers=[ANY],
            expose_headers=EXPOSED,
            # An operator who allows a page means it to reach the server's network.
            allow_private_network=True,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == HTTPStatus.OK:
            return response
        if self.is_allowed_origin(request_headers["origin"]):
            method = request_headers["access-control-request-method"][:100]
            message = f"Pages may send {', '.join(METHODS)}, not {method}."
        else:
            message = (
                "Pages of this origin may not call this server. "
                "Its operator can name it in STOKER_CORS_ORIGINS."
            )
        refused = error_response(InvalidRequestError(message))
        for name, value in response.headers.items():
            if name.startswith("access-control-") or name == "vary":
                refused.headers[name] = value
        return refused
