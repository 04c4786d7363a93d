"""Decides which hosts a client's request may reach, checked when the socket is opened.

The name is resolved once, every address is checked, and only a checked address is connected to.
Redirects, odd IPv4 literals and names that resolve differently the second time all pass through
this check.
"""

import asyncio
import contextlib
import functools
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import cast

import httpcore2
import httpx2

from stoker.base.fairness import CURRENT_CALLER, FairSemaphore

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

ADDRESS_ATTEMPTS = 4

# RFC 1123, and the underscore that real names contain.
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\Z")

# Only 2000::/3 is global unicast. This alone excludes IPv4-mapped and -compatible addresses, NAT64
#     (64:ff9b::/96), unique local, link-local and multicast ones.
_GLOBAL_V6 = IPv6Network("2000::/3")
# Global according to the registries, but they lead back inside, or carry an IPv4 address that does.
_INWARD: tuple[IPv4Network | IPv6Network, ...] = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments, with the anycast addresses is_global excepts
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # the host agent of one cloud's machines
        "2001::/23",  # Teredo, ORCHID and other protocol assignments
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation, unknown to Python 3.11
    )
)

UNREACHABLE = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)
"""Errors raised if an allowed host does not answer correctly."""

log = logging.getLogger(__name__)


@functools.cache
def trusted() -> ssl.SSLContext:
    """Returns a TLS context with this machine's certificates, which take a moment to read."""
    return httpx2.create_ssl_context()


def is_global(address: str) -> bool:
    """True if an address belongs to the public internet and to a single host there."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and (ip.scope_id or ip not in _GLOBAL_V6):
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in inward for inward in _INWARD)


def canonical_host(host: str) -> str:
    """Returns the canonical spelling of a host. Raises ValueError for anything but a host."""
    if ":" in host:
        address = IPv6Address(host)
        if address.scope_id:
            raise ValueError("scope")
        return str(address)
    host = host.lower().removesuffix(".")
    if not _HOST.match(host):
        raise ValueError("host")
    return host


class HostRefusedError(Exception):
    """The host has no allowed address, or none. Separate errors would let clients probe for
    internal names.
    """


class HostUnknownError(HostRefusedError):
    """The host, which is the argument, has no address. Only a caller that did not choose the host
    may learn this; see `HostRefusedError`.
    """


class ResolverSilentError(httpcore2.ConnectError):
    """No name server answered. Nothing is known about the name, which is the argument."""


class HostNotListedError(HostRefusedError):
    """The host is not in the operator's list of reachable hosts."""


@dataclass(frozen=True)
class HostRule:
    """Entry of a setting that lists hosts: `host`, `.domain` or `host:port`.

    `.example.org` means every name below `example.org`, not that name itself. An entry without a
    port means all ports.
    """

    host: str
    port: int | None

    @classmethod
    def parse(cls, entry: str) -> "HostRule":
        """Raises ValueError for an entry that is not a host with or without a port."""
        try:
            # Without a scheme the URL has no default port, so no port is dropped.
            url = httpx2.URL(f"//{entry}")
            name = url.raw_host.decode("ascii")
            host = canonical_host(name.removeprefix("."))
        except (httpx2.InvalidURL, ValueError) as error:
            raise ValueError(f"'{entry}' is not a host, .domain or host:port") from error
        if url.userinfo or url.raw_path not in (b"", b"/"):
            raise ValueError(f"'{entry}' is not a host, .domain or host:port")
        return cls(f".{host}" if name.startswith(".") else host, url.port)

    def matches(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        return host.endswith(self.host) if self.host.startswith(".") else host == self.host


class Resolver:
    """Resolves names in separate threads: slow names must not hold up the server's other threads.

    The threads are shared fairly among accounts. A name that hangs counts until its thread is free
    again.
    """

    def __init__(self, concurrency: int) -> None:
        self._slots = FairSemaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        account, loop = CURRENT_CALLER.get().account, asyncio.get_running_loop()
        await self._slots.acquire(account)

        def free(_: object) -> None:
            with contextlib.suppress(RuntimeError):
                # If the loop has ended, no caller waits any more.
                loop.call_soon_threadsafe(self._slots.release, account)

        looking = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        # The waiting caller may have ended before the thread does.
        looking.add_done_callback(free)
        infos = await asyncio.wrap_future(looking)
        return [str(address[0]) for *_, address in infos]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections to allowed hosts only.

    Args:
        allowed: the only hosts (with `private`). Empty: all public hosts.
        private: hosts with addresses that need not be global.
        resolve: maps host and port to addresses. Raises OSError if none exist.
    """

    def __init__(self, resolve: Resolve, allowed: Sequence[str], private: Sequence[str]) -> None:
        """Raises ValueError for a malformed entry; see `HostRule`."""
        self._resolve = resolve
        self._allowed = [HostRule.parse(entry) for entry in allowed]
        self._private = [HostRule.parse(entry) for entry in private]
        # httpcore2's types hide this class behind a fallback for installations without anyio.
        self._sockets = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 — the base class has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises HostRefusedError for a rejected host, httpcore2.NetworkError for an unreachable
        one.
        """
        failure: Exception = httpcore2.ConnectError()
        for address in (await self._checked(host, port))[:ADDRESS_ATTEMPTS]:
            try:
                return await self._sockets.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _checked(self, host: str, port: int) -> Sequence[str]:
        """Returns the addresses of an allowed host."""
        private = any(rule.matches(host, port) for rule in self._private)
        allowed = private or any(rule.matches(host, port) for rule in self._allowed)
        if self._allowed and not allowed:
            raise HostNotListedError
        addresses: Sequence[str] = ()
        cause, refusal = "it resolves to an address that is not global", HostRefusedError(host)
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            if error.errno == socket.EAI_AGAIN:
                # This does not show whether the name exists.
                raise ResolverSilentError(host) from error
            cause, refusal = repr(error), HostUnknownError(host)
        # A single inward address suffices to reject the host: chance would decide which address is
        # connected to.
        if addresses and (private or all(is_global(address) for address in addresses)):
            return addresses
        log.info("host refused", extra={"host": host, "port": port, "cause": cause})
        raise refusal
