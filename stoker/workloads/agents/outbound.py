"""HTTP client for hosts that clients name, used by libraries with their own protocol.

The same rules apply as for the media fetcher: hosts are checked when the socket is opened, nothing
is decompressed, and limits apply while reading.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpcore2
import httpx2

from stoker.base.errors import InvalidRequestError
from stoker.media.hosts import UNREACHABLE, CheckedBackend, HostRefusedError, Resolve, Resolver
from stoker.platform.web.structure import Structure

RESPONSE_LIMIT_BYTES = 8 << 20
CONCURRENCY = 32
CONNECT_TIMEOUT_S = 10.0


class Outbound:
    """Creates HTTP clients that connect only to allowed hosts.

    allowed_hosts, allowed_private: see `CheckedBackend`.
    """

    def __init__(
        self,
        *,
        allowed_hosts: Sequence[str] = (),
        allowed_private: Sequence[str] = (),
        resolve: Resolve | None = None,
    ) -> None:
        """Raises ValueError if a host entry is malformed."""
        self._resolver = Resolver(CONCURRENCY)
        self._backend = CheckedBackend(resolve or self._resolver, allowed_hosts, allowed_private)
        self._ssl_context: ssl.SSLContext | None = None

    def close(self) -> None:
        self._resolver.close()

    @asynccontextmanager
    async def client(
        self, headers: dict[str, str], timeout_s: float
    ) -> AsyncGenerator[httpx2.AsyncClient]:
        """Yields a client with its own connections, which are closed with it. It follows no
        redirects.

        Args:
            timeout_s: the longest silence.
        """
        self._ssl_context = self._ssl_context or httpx2.create_ssl_context()
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._ssl_context, network_backend=self._backend
        )
        async with httpx2.AsyncClient(
            transport=_Transport(pool),
            headers={"user-agent": "stoker", "accept-encoding": "identity", **headers},
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        ) as client:
            yield client


class OutboundRefusedError(httpx2.ConnectError):
    """The operator's settings do not allow this host."""


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, pool: httpcore2.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises httpx2.TransportError."""
        url = request.url
        try:
            response = await self._pool.handle_async_request(
                httpcore2.Request(
                    request.method,
                    httpcore2.URL(
                        scheme=url.raw_scheme,
                        host=url.raw_host,
                        port=url.port,
                        target=url.raw_path,
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except HostRefusedError as error:
            raise OutboundRefusedError("the host may not be reached", request=request) from error
        except UNREACHABLE as error:
            raise httpx2.ConnectError("the host cannot be reached", request=request) from error
        headers = httpx2.Headers(response.headers)
        stream = _Limited(response.stream)
        if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            await stream.aclose()
            raise httpx2.RemoteProtocolError("the body is encoded", request=request)
        return httpx2.Response(response.status, headers=headers, stream=stream)

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Limited(httpx2.AsyncByteStream):
    """Body with limits. Raises httpx2.ReadError if the body breaks off, is too large or holds too
    much.
    """

    def __init__(self, stream: Any) -> None:
        self._stream: AsyncIterable[bytes] = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        structure = Structure()
        try:
            async for chunk in self._stream:
                received += len(chunk)
                if received > RESPONSE_LIMIT_BYTES:
                    raise httpx2.ReadError("the answer is too large")
                # A library parses it on the event loop.
                structure.add(chunk)
                yield chunk
        except InvalidRequestError as error:
            raise httpx2.ReadError("the answer holds too much") from error
        except UNREACHABLE as error:
            raise httpx2.ReadError("the answer broke off") from error

    async def aclose(self) -> None:
        close: Any = getattr(self._stream, "aclose", None)
        if close:
            await close()
