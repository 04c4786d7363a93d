"""Which hosts may be reached for a client, checked where the socket is opened.

The name is resolved once, every address is checked, and exactly a checked address is connected
to. Redirects, odd IPv4 literals and names that resolve differently the second time all pass
through this one place.
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

# RFC 1123, and the underscore that real names have.
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\Z")

# Only 2000::/3 is global unicast: that alone leaves out IPv4-mapped and -compatible addresses,
# NAT64 (64:ff9b::/96), unique local, link-local and multicast ones.
_GLOBAL_V6 = IPv6Network("2000::/3")
# Global by the registries' letter, yet they lead back inside, or carry an IPv4 address that does.
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
"""What is raised where a host that may be reached does not answer as it should."""

log = logging.getLogger(__name__)


@functools.cache
def trusted() -> ssl.SSLContext:
    """TLS with the certificates of this machine, which take a moment to read."""
    return httpx2.create_ssl_context()


def is_global(address: str) -> bool:
    """Whether an address belongs to the public internet and to a single host there."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and (ip.scope_id or ip not in _GLOBAL_V6):
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in inward for inward in _INWARD)


def canonical_host(host: str) -> str:
    """The one spelling of a host. Raises ValueError for what is not a host."""
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
    """A host without an address that may be reached, or without any: told apart, clients could
    ask which names exist inside.
    """


class HostUnknownError(HostRefusedError):
    """The host, which is the argument, has no address. Only a caller that did not choose the host
    may learn this; see `HostRefusedError`.
    """


class ResolverSilentError(httpcore2.ConnectError):
    """No name server has answered: nothing is known of the name, which is the argument."""


class HostNotListedError(HostRefusedError):
    """The operator has listed the hosts that may be reached, and this is none of them."""


@dataclass(frozen=True)
class HostRule:
    """An entry of a setting that lists hosts: `host`, `.domain` or `host:port`.

    `.example.org` means every name below `example.org`, not that name itself. Without a port,
    all ports are meant.
    """

    host: str
    port: int | None

    @classmethod
    def parse(cls, entry: str) -> "HostRule":
        """Raises ValueError for an entry that is not a host with or without a port."""
        try:
            # Without a scheme no port is anybody's default, and none is dropped.
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
    """Resolves names in threads of its own: slow ones must not hold up the server's others.

    They are shared out by account, and a name that hangs counts until its thread is free again.
    """

    def __init__(self, concurrency: int) -> None:
        self._slots = FairSemaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        account, loop = CURRENT_CALLER.get().account, asyncio.get_running_loop()
        await self._slots.acquire(account)

        def free(_: object) -> None:
            with contextlib.suppress(RuntimeError):
                # Where the loop has ended, nobody waits any more.
                loop.call_soon_threadsafe(self._slots.release, account)

        looking = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        # Whoever waits may be gone by then.
        looking.add_done_callback(free)
        infos = await asyncio.wrap_future(looking)
        return [str(address[0]) for *_, address in infos]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections to hosts that may be reached, and to no others.

    allowed: the only hosts (with `private`); empty: all public ones.
    private: hosts whose addresses need not be global.
    resolve: host and port to addresses; raises OSError where there are none.
    """

    def __init__(self, resolve: Resolve, allowed: Sequence[str], private: Sequence[str]) -> None:
        """Raises ValueError for an entry that is malformed; see `HostRule`."""
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
        """Raises HostRefusedError for a refused host, httpcore2.NetworkError for a dead one."""
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
        """The addresses of a host that may be reached."""
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
                # Of whether there is such a name, this tells nothing.
                raise ResolverSilentError(host) from error
            cause, refusal = repr(error), HostUnknownError(host)
        # One inward address is enough: which one gets connected to would be left to chance.
        if addresses and (private or all(is_global(address) for address in addresses)):
            return addresses
        log.info("host refused", extra={"host": host, "port": port, "cause": cause})
        raise refusal
