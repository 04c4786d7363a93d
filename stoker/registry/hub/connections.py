"""Sends requests to a hub over persistent connections. Follows its redirects within limits."""

import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2

from stoker.base.errors import CapacityError, HubError, InvalidMediaError
from stoker.media.fetch import REDIRECTS, checked_url, redirected
from stoker.media.hosts import (
    UNREACHABLE,
    CheckedBackend,
    HostRefusedError,
    HostUnknownError,
    Resolve,
    Resolver,
    ResolverSilentError,
    trusted,
)

MAX_REDIRECTS = 5
READ_BYTES = 1024 * 1024
RETRY_AFTER_S = 10.0
_DRAINED_DIGITS = 5
"""Maximum number of digits of a content length for which a body is drained: less than 100,000
bytes.
"""
_AS_IT_IS = (b"", b"identity")

log = logging.getLogger(__name__)

Headers = Sequence[tuple[str, str]]


class _Stream(httpcore2.AsyncNetworkStream):
    """Stream that reads all available bytes at once. Its client requests 64 KiB at a time, and the
    overhead per read takes longer than the bytes.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._stream.read(max(max_bytes, READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(CheckedBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 — the base class has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream)


@dataclass(frozen=True)
class HubResponse:
    """Start of a response, with the source of its body."""

    response: httpcore2.Response
    headers: Mapping[bytes, bytes]
    """Headers by lower-case name."""
    is_own: bool
    """True if the hub itself answered. False for a host that the hub redirects to."""

    @property
    def status(self) -> int:
        return self.response.status


class HubConnections:
    """
    Args:
        endpoint: address of the hub, without a trailing slash.
        private_hosts: hosts, in addition to the endpoint's own, with addresses that need not be
            global; see `HostRule`.
        kept: maximum number of idle connections.
        answer_s: timeout of a connection attempt in seconds.
        silence_s: longest pause between two pieces of a response, in seconds.
        resolve: resolves host and port to addresses. Raises OSError if the host has none.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        private_hosts: Sequence[str],
        kept: int,
        answer_s: float,
        silence_s: float,
        resolve: Resolve | None,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        """Raises ValueError if a host entry is malformed, or the endpoint is not a valid
        address.
        """
        try:
            endpoint_url = checked_url(endpoint)
        except InvalidMediaError as error:
            raise ValueError(f"'{endpoint}' is not the address of a hub") from error
        self._endpoint = endpoint
        self._origin = _origin(endpoint_url)
        self._timeouts = {"connect": answer_s, "read": silence_s, "write": silence_s}
        self._resolver = Resolver(kept)
        # An operator who configures an internal hub allows its address.
        private = [endpoint_url.netloc.decode("ascii"), *private_hosts]
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or trusted(),
            max_connections=None,
            max_keepalive_connections=kept,
            keepalive_expiry=answer_s,
            network_backend=_Backend(resolve or self._resolver, (), private),
        )

    @contextlib.asynccontextmanager
    async def get(
        self, path: str, token: str | None, extra: Headers = (), *, commit: str | None = None
    ) -> AsyncGenerator[HubResponse]:
        """Yields the hub's response for a path, after redirects.

        Args:
            commit: commit that the hub's response must name, if it names any.

        Raises `HubError`, and `CapacityError` if a retry may succeed.
        """
        is_own = True
        try:
            url = checked_url(f"{self._endpoint}{path}")
            for _ in range(MAX_REDIRECTS + 1):
                is_own = _origin(url) == self._origin
                # The token is not sent to hosts that the hub redirects to.
                secret = [("Authorization", f"Bearer {token}")] if token and is_own else []
                async with self._answer(url, [*secret, *extra], is_own=is_own) as answer:
                    if commit and is_own:
                        _check_commit(answer, commit)
                    location = answer.headers.get(b"location")
                    if answer.status not in REDIRECTS or location is None:
                        yield answer
                        return
                    await _drain(answer)
                target = redirected(url, location)
                if url.scheme == "https" and target.scheme == "http":
                    raise HubError("The hub redirects from https to http.")
                url = target
            raise HubError(f"The hub redirects more than {MAX_REDIRECTS} times.")
        except InvalidMediaError as error:
            raise HubError("The hub redirects to an address that is not valid.") from error
        except (HostUnknownError, ResolverSilentError) as error:
            raise unavailable(_no_address(str(error), is_own=is_own)) from error
        except HostRefusedError as error:
            raise HubError(
                f"The host '{error}'{_from_hub(is_own=is_own)} has an address that is not "
                "public. If this is intended, the operator can add the host to "
                "STOKER_HUB_PRIVATE_HOSTS."
            ) from error
        except UNREACHABLE as error:
            log.info("hub could not be reached", extra={"cause": repr(error)})
            raise unavailable(
                "cannot be reached, has no valid certificate, or closed the connection"
            ) from error

    async def close(self) -> None:
        await self._pool.aclose()
        self._resolver.close()

    @contextlib.asynccontextmanager
    async def _answer(
        self, url: httpx2.URL, extra: Headers, *, is_own: bool
    ) -> AsyncGenerator[HubResponse]:
        target = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        headers = [
            ("Host", url.netloc.decode("ascii")),
            ("User-Agent", "stoker"),
            ("Accept", "*/*"),
            # A compressed response could exceed every limit when it is decompressed.
            ("Accept-Encoding", "identity"),
            *extra,
        ]
        async with self._pool.stream(
            "GET", target, headers=headers, extensions={"timeout": self._timeouts}
        ) as response:
            lower_headers = {name.lower(): value for name, value in response.headers}
            if lower_headers.get(b"content-encoding", b"").strip().lower() not in _AS_IT_IS:
                raise HubError(
                    "The hub sends encoded bodies. It must send files without Content-Encoding."
                )
            yield HubResponse(response, lower_headers, is_own)


def _no_address(host: str, *, is_own: bool) -> str:
    return (
        f"cannot be reached: the name '{host}'{_from_hub(is_own=is_own)} has no "
        "address. This server has no DNS or no internet access, or the name is "
        "wrong. Set STOKER_HUB_ENDPOINT to use another hub. Without a hub, upload "
        "the files"
    )


def _from_hub(*, is_own: bool) -> str:
    return "" if is_own else ", to which the hub redirects,"


def unavailable(what: str, retry_after_s: float = RETRY_AFTER_S) -> CapacityError:
    return CapacityError(
        f"The hub {what}. Try again later.", code="hub_unavailable", retry_after_s=retry_after_s
    )


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _check_commit(answer: HubResponse, commit: str) -> None:
    answered_commit = answer.headers.get(b"x-repo-commit", b"")
    if answered_commit and answered_commit != commit.encode():
        raise HubError(
            f"The hub answered with another commit than the requested {commit}. Start "
            "the import again."
        )


async def _drain(answer: HubResponse) -> None:
    """Reads the body of a redirect if it is short. Otherwise the connection could not be reused."""
    length = answer.headers.get(b"content-length", b"")
    if length.isdigit() and len(length) <= _DRAINED_DIGITS:
        await answer.response.aread()
