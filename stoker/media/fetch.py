"""The one fetcher of URLs that clients give. Nothing else in the server opens such a connection.

Server-side request forgery is met in `hosts`, where a socket is opened; here are the parser whose
view of a URL is the only one, redirects followed by hand, and limits that hold while reading.
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
# An answer that is decompressed could grow past every limit, so none is asked for.
HEADERS = (("User-Agent", "stoker"), ("Accept", "*/*"), ("Accept-Encoding", "identity"))

log = logging.getLogger(__name__)


def shown_size(size_bytes: int) -> str:
    """A size as messages show it: MiB where it is a whole number of them, else bytes."""
    mib, rest = divmod(size_bytes, 1024 * 1024)
    return f"{mib} MiB" if mib and not rest else f"{size_bytes} bytes"


class Fetcher:
    """Fetches media by URL.

    allowed_hosts: the only hosts fetched from (with allowed_private); empty: all public ones.
    allowed_private: hosts whose addresses need not be global.
    ceiling_s: longest fetch, seconds, whatever the client wishes.
    concurrency: most fetches at once, shared out by account; further ones wait, and their deadline
        runs.
    resolve: host and port to addresses; raises OSError where there are none.
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
        """Raises ValueError for a host entry that is malformed."""
        self._max_redirects = max_redirects
        self._connect_timeout_s = connect_timeout_s
        self._ceiling_s = ceiling_s
        self._slots = FairSemaphore(concurrency)
        self._resolver = Resolver(concurrency)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or trusted(),
            # A kept connection would spare the next fetch its check.
            max_keepalive_connections=0,
            # The slots are the limit; the pool knows no accounts.
            max_connections=None,
            network_backend=CheckedBackend(
                resolve or self._resolver, allowed_hosts, allowed_private
            ),
        )

    async def fetch(self, url: str, *, limit_bytes: int, timeout_s: float | None) -> bytes:
        """The body of the answer to a GET of `url`, at most `limit_bytes` long.

        timeout_s: deadline of it all, seconds; None: the server's ceiling.
        Raises InvalidMediaError for anything but that.
        """
        deadline_s = self._ceiling_s if timeout_s is None else min(timeout_s, self._ceiling_s)
        target = checked_url(url)
        try:
            async with asyncio.timeout(deadline_s), self._slots.hold(CURRENT_CALLER.get().account):
                return await self._follow(target, limit_bytes)
        except TimeoutError as error:
            raise InvalidMediaError(
                f"The URL was not fetched within {deadline_s:g} s. "
                "Send the media itself, or give it more time."
            ) from error
        except HostNotListedError as error:
            raise InvalidMediaError(
                "The URL's host is not one that this server fetches from (STOKER_MEDIA_HOSTS). "
                "Send the media itself, as a data URI or base64."
            ) from error
        except HostRefusedError as error:
            raise InvalidMediaError(
                "The URL's host has no address, or one that is not public. Check its name; where "
                "the server has no DNS or no internet, send the media itself. Its operator can "
                "allow an internal host (STOKER_MEDIA_PRIVATE_HOSTS)."
            ) from error
        except ResolverSilentError as error:
            raise InvalidMediaError(
                "The URL could not be fetched: no DNS server answers this server, which may have "
                "no internet. Send the media itself."
            ) from error
        except UNREACHABLE as error:
            log.info("media not fetched", extra={"host": target.host, "cause": repr(error)})
            raise InvalidMediaError(
                "The URL could not be fetched: its host cannot be reached, has no valid "
                "certificate, or broke off. Check the URL, or send the media itself."
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
                    "The URL redirects from https to http. Give an https URL that stays https."
                )
            url = answer
        raise InvalidMediaError(
            f"The URL redirects more than {self._max_redirects} times. Give the final one."
        )

    async def _get(self, url: httpx2.URL, limit_bytes: int) -> bytes | httpx2.URL:
        """The body, or where the answer redirects to."""
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
                    "It has to answer a plain GET with 200."
                )
            return await _body(response, headers, limit_bytes)


def checked_url(url: str) -> httpx2.URL:
    """The URL as it is fetched: this parser's view is the only one that counts.

    Raises InvalidMediaError for what is not a plain http or https URL.
    """
    if len(url) > URL_LIMIT_CHARS:
        raise InvalidMediaError(f"The URL is longer than {URL_LIMIT_CHARS} characters.")
    # Parsers disagree about these, which is how one host is checked and another one asked.
    if "\\" in url or any(char.isspace() or not char.isprintable() for char in url):
        raise InvalidMediaError(
            "The URL contains backslashes, blanks or control characters. Percent-encode them."
        )
    try:
        parsed = httpx2.URL(url)
        port = 80 if parsed.port is None else parsed.port
        if parsed.scheme not in ("http", "https") or not 0 < port < 65536:
            raise ValueError("scheme or port")
        if parsed.userinfo:
            raise InvalidMediaError(
                "The URL contains a user name or a password. Give one without them."
            )
        host = canonical_host(parsed.raw_host.decode("ascii"))
        return parsed.copy_with(host=host, fragment=None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidMediaError(
            "The URL is not valid. Give one as https://example.org/cat.jpg (http or https)."
        ) from error


def redirected(url: httpx2.URL, location: bytes) -> httpx2.URL:
    """Where an answer to a URL redirects to. Raises as `checked_url`."""
    try:
        relative = location.decode("utf-8")
        # Looked at before it is joined, because joining would quote what is refused.
        if "\\" in relative:
            raise ValueError("backslash")
        return checked_url(str(url.join(relative)))
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidMediaError("The URL redirects to one that is not valid.") from error


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
