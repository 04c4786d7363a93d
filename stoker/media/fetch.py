"""Fetches URLs from clients. Nothing else in the server opens such a connection.

`hosts` prevents server-side request forgery when a socket is opened. This module has the only URL
parser that counts, follows redirects by hand, and enforces limits while reading.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence

import httpcore2
import httpx2

from stoker.base.errors import InvalidMediaError
from stoker.base.fairness import CURRENT_CALLER, FairSemaphore
from stoker.media.hosts import (
    UNREACHABLE,
    CheckedBackend,
    HostNotListedError,
    HostRefusedError,
    Resolve,
    Resolver,
    ResolverSilentError,
    canonical_host,
    trusted,
)

URL_LIMIT_CHARS = 8192
REDIRECTS = {301, 302, 303, 307, 308}
# A compressed answer could grow past every limit, so none is requested.
HEADERS = (("User-Agent", "stoker"), ("Accept", "*/*"), ("Accept-Encoding", "identity"))

log = logging.getLogger(__name__)


def shown_size(size_bytes: int) -> str:
    """Formats a size for messages: in MiB if it is a whole number of them, otherwise in bytes."""
    mib, rest = divmod(size_bytes, 1024 * 1024)
    return f"{mib} MiB" if mib and not rest else f"{size_bytes} bytes"


class Fetcher:
    """Fetches media by URL.

    Args:
        allowed_hosts: the only hosts to fetch from (with allowed_private). Empty: all public hosts.
        allowed_private: hosts with addresses that need not be global.
        ceiling_s: maximum duration of a fetch in seconds, regardless of the client's timeout.
        concurrency: maximum number of concurrent fetches, shared fairly among accounts. Further
            ones wait while their deadline runs.
        resolve: maps host and port to addresses. Raises OSError if none exist.
    """

    def __init__(
        self,
        *,
        allowed_hosts: Sequence[str] = (),
        allowed_private: Sequence[str] = (),
        max_redirects: int = 3,
        connect_timeout_s: float = 10,
        ceiling_s: float = 120,
        concurrency: int = 32,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Raises ValueError for a malformed host entry."""
        self._max_redirects = max_redirects
        self._connect_timeout_s = connect_timeout_s
        self._ceiling_s = ceiling_s
        self._slots = FairSemaphore(concurrency)
        self._resolver = Resolver(concurrency)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or trusted(),
            # The next fetch through a kept connection would skip the check of its host.
            max_keepalive_connections=0,
            # The slots are the limit; the pool does not know accounts.
            max_connections=None,
            network_backend=CheckedBackend(
                resolve or self._resolver, allowed_hosts, allowed_private
            ),
        )

    async def fetch(self, url: str, *, limit_bytes: int, timeout_s: float | None) -> bytes:
        """Returns the body of the answer to a GET of `url`, at most `limit_bytes` long.

        Raises InvalidMediaError for any other outcome.

        Args:
            timeout_s: deadline of the whole fetch in seconds. None: the server's ceiling.
        """
        deadline_s = self._ceiling_s if timeout_s is None else min(timeout_s, self._ceiling_s)
        target = checked_url(url)
        try:
            async with asyncio.timeout(deadline_s), self._slots.hold(CURRENT_CALLER.get().account):
                return await self._follow(target, limit_bytes)
        except TimeoutError as error:
            raise InvalidMediaError(
                f"The URL was not fetched within {deadline_s:g} s. "
                "Send the media itself, or allow more time."
            ) from error
        except HostNotListedError as error:
            raise InvalidMediaError(
                "The URL's host is not allowed on this server (STOKER_MEDIA_HOSTS). "
                "Send the media itself, as a data URI or base64."
            ) from error
        except HostRefusedError as error:
            raise InvalidMediaError(
                "The URL's host has no public address. Check its name. If the server has no DNS "
                "or no internet, send the media itself. The operator can allow an "
                "internal host (STOKER_MEDIA_PRIVATE_HOSTS)."
            ) from error
        except ResolverSilentError as error:
            raise InvalidMediaError(
                "The URL could not be fetched: no DNS server answers this server, which may have "
                "no internet. Send the media itself."
            ) from error
        except UNREACHABLE as error:
            log.info("media not fetched", extra={"host": target.host, "cause": repr(error)})
            raise InvalidMediaError(
                "The URL could not be fetched: its host is unreachable, has no valid "
                "certificate or closed the connection. Check the URL, or send the media "
                "itself."
            ) from error

    async def close(self) -> None:
        await self._pool.aclose()
        self._resolver.close()

    async def _follow(self, url: httpx2.URL, limit_bytes: int) -> bytes:
        for _ in range(self._max_redirects + 1):
            answer = await self._get(url, limit_bytes)
            if isinstance(answer, bytes):
                return answer
            if url.scheme == "https" and answer.scheme == "http":
                raise InvalidMediaError(
                    "The URL redirects from https to http. Send an https URL that stays https."
                )
            url = answer
        raise InvalidMediaError(
            f"The URL redirects more than {self._max_redirects} times. Send the final URL."
        )

    async def _get(self, url: httpx2.URL, limit_bytes: int) -> bytes | httpx2.URL:
        """Returns the body, or the URL that the answer redirects to."""
        target = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        async with self._pool.stream(
            "GET",
            target,
            headers=[("Host", url.netloc.decode("ascii")), *HEADERS],
            extensions={"timeout": {"connect": self._connect_timeout_s}},
        ) as response:
            headers = {name.lower(): value for name, value in response.headers}
            if response.status in REDIRECTS and b"location" in headers:
                return redirected(url, headers[b"location"])
            if response.status != 200:
                raise InvalidMediaError(
                    f"The URL answered with status {response.status}. "
                    "It must answer a plain GET with 200."
                )
            return await _body(response, headers, limit_bytes)


def checked_url(url: str) -> httpx2.URL:
    """Returns the URL as it will be fetched: only this parser's view counts.

    Raises InvalidMediaError for anything but a plain http or https URL.
    """
    if len(url) > URL_LIMIT_CHARS:
        raise InvalidMediaError(f"The URL is longer than {URL_LIMIT_CHARS} characters.")
    # Parsers disagree about these, so one host could be checked and another one contacted.
    if "\\" in url or any(char.isspace() or not char.isprintable() for char in url):
        raise InvalidMediaError(
            "The URL contains backslashes, spaces or control characters. Percent-encode them."
        )
    try:
        parsed = httpx2.URL(url)
        port = 80 if parsed.port is None else parsed.port
        if parsed.scheme not in ("http", "https") or not 0 < port < 65536:
            raise ValueError("scheme or port")
        if parsed.userinfo:
            raise InvalidMediaError(
                "The URL contains a user name or a password. Send a URL without them."
            )
        host = canonical_host(parsed.raw_host.decode("ascii"))
        return parsed.copy_with(host=host, fragment=None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidMediaError(
            "The URL is not valid. Send an http or https URL such as https://example.org/cat.jpg."
        ) from error


def redirected(url: httpx2.URL, location: bytes) -> httpx2.URL:
    """Returns the URL that an answer redirects to. Raises as `checked_url`."""
    try:
        relative = location.decode("utf-8")
        # Checked before joining, because joining would quote the rejected characters.
        if "\\" in relative:
            raise ValueError("backslash")
        return checked_url(str(url.join(relative)))
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidMediaError("The URL redirects to a URL that is not valid.") from error


async def _body(
    response: httpcore2.Response, headers: dict[bytes, bytes], limit_bytes: int
) -> bytes:
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        raise InvalidMediaError(
            "The URL answers with an encoded body. It must send the body without Content-Encoding."
        )
    too_large = InvalidMediaError(
        f"The media at the URL is larger than {shown_size(limit_bytes)}, the limit."
    )
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > limit_bytes:
            raise too_large
    if not body:
        raise InvalidMediaError("The URL answers with an empty body.")
    return bytes(body)
