"""Sessions of browsers that are signed in with a key. A cookie represents the key, and changes need
a CSRF token.

Scripts cannot read the cookie, and other sites cannot make the browser send it. Stoker's pages send
a token derived from the cookie. The token proves that the sender has read an earlier response of
this server.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request

from stoker.base.errors import ForbiddenError, InvalidAPIKeyError
from stoker.platform.web.principal import Principal
from stoker.store import db
from stoker.store.db import Database
from stoker.tenancy.keys import repository
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.repository import SessionRow

COOKIE = "stoker_session"
CSRF_HEADER = "x-csrf-token"
SAFE = frozenset({"GET", "HEAD"})
_OURS = frozenset({"same-origin", "none"})
"""Trusted values of `Sec-Fetch-Site`. `none` means that the user started the request (Fetch
Metadata, section 2.4).
"""
_CACHE_LIMIT = 10_000
_MAX_TOKEN = 64


@dataclass(frozen=True)
class BrowserSession:
    """Live session with the principal of its key."""

    row: SessionRow
    principal: Principal


@dataclass(frozen=True)
class _CheckedSession:
    row: SessionRow
    checked: float


class Sessions:
    """Cache of checked sessions. Sessions are trusted for the same time as keys: see `Keyring`."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: dict[bytes, _CheckedSession] = {}

    async def check(self, token: str) -> BrowserSession:
        """Returns the session of a cookie. Raises `InvalidAPIKeyError` if the cookie is invalid or
        the session has ended.
        """
        if not token.isascii() or not 0 < len(token) <= _MAX_TOKEN:
            raise signed_out()
        return await self.check_digest(digest(token))

    async def check_digest(self, token_sha256: bytes) -> BrowserSession:
        """Like `check`, but for the digest of a session's token."""
        entry = self._entries.get(token_sha256)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = await self._looked_up(token_sha256)
        if entry is None or db.now() >= entry.row.expires_at:
            raise signed_out()
        row = entry.row
        try:
            principal = await self._keyring.admitted(row.public_id, row.secret_sha256)
        except InvalidAPIKeyError:
            raise signed_out() from None
        return BrowserSession(row, principal)

    def forget(self, token_sha256: bytes) -> None:
        self._entries.pop(token_sha256, None)

    async def _looked_up(self, token_sha256: bytes) -> _CheckedSession | None:
        began = self._clock()
        async with self._database.reading() as session:
            row = await repository.browser_session(session, token_sha256)
        if row is None:
            self._entries.pop(token_sha256, None)
            return None
        if len(self._entries) >= _CACHE_LIMIT:
            self._entries.clear()
        entry = self._entries[token_sha256] = _CheckedSession(row, began)
        return entry


def signed_out() -> InvalidAPIKeyError:
    """Returns the error for a browser without a session. Its key may have ended too."""
    return InvalidAPIKeyError(
        "This browser is not signed in, or its session has ended. Sign in again."
    )


def digest(token: str) -> bytes:
    """Returns the SHA-256 of a token, which has 256 random bits."""
    return hashlib.sha256(token.encode()).digest()


def csrf_token(token: str) -> str:
    """Returns the token that a change must be sent with: 64 hexadecimal digits that do not reveal
    the cookie.
    """
    return hmac.new(token.encode(), b"stoker console csrf", hashlib.sha256).hexdigest()


def cookie_of(request: Request) -> str | None:
    """Returns the session's cookie, unless a header with a key identifies the caller."""
    headers = request.headers
    if "authorization" in headers or "x-api-key" in headers or "cookie" not in headers:
        return None
    return request.cookies.get(COOKIE)


def check_csrf(request: Request, token: str) -> None:
    """Raises `ForbiddenError` if a request does not come from a page of this server."""
    refuse_other_sites(request)
    csrf_header = request.headers.get(CSRF_HEADER, "")
    if request.method in SAFE or hmac.compare_digest(
        csrf_header.encode(), csrf_token(token).encode()
    ):
        return
    raise ForbiddenError(
        f"A change by a signed-in browser needs the header {CSRF_HEADER} with the "
        "token from GET /console/session.",
        code="csrf_token_missing",
    )


def refuse_other_sites(request: Request) -> None:
    """Raises `ForbiddenError` if the browser reports that another site's page makes the request.

    Browsers send `Sec-Fetch-Site` only to trusted addresses (TLS, or this machine). For other
    addresses, `Origin` is compared with the requested host.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_ours = site in _OURS
    else:
        is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_ours:
        raise ForbiddenError(
            "Pages of other sites cannot use a browser's sign-in. Such a page needs "
            "its own API key.",
            code="other_site",
        )
