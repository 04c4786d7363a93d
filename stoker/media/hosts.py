"""Which hosts media may be fetched from, checked where the socket is opened.

The name is resolved once, every address is checked, and exactly a checked address is connected
to. Redirects, odd IPv4 literals and names that resolve differently the second time all pass
through this one place.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import cast

import httpcore
import httpx

from stoker.errors import InvalidMediaError

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

log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class HostRule:
    """An entry of `media_hosts` or `media_private_hosts`: `host`, `.domain` or `host:port`.

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
            url = httpx.URL(f"//{entry}")
            name = url.raw_host.decode("ascii")
            host = canonical_host(name.removeprefix("."))
        except (httpx.InvalidURL, ValueError) as error:
            raise ValueError(f"'{entry}' is not a host, .domain or host:port") from error
        if url.userinfo or url.raw_path not in (b"", b"/"):
            raise ValueError(f"'{entry}' is not a host, .domain or host:port")
        return cls(f".{host}" if name.startswith(".") else host, url.port)

    def matches(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        return host.endswith(self.host) if self.host.startswith(".") else host == self.host


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens TCP connections to hosts that may be fetched from, and to no others."""

    def __init__(
        self, resolve: Resolve, allowed: Sequence[HostRule], private: Sequence[HostRule]
    ) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._private = private
        # httpcore's types hide this class behind a fallback for installations without anyio.
        self._sockets = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 — the base class has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises InvalidMediaError for a refused host, httpcore.NetworkError for a dead one."""
        failure: Exception = httpcore.ConnectError()
        for address in (await self._checked(host, port))[:ADDRESS_ATTEMPTS]:
            try:
                return await self._sockets.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _checked(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host that may be fetched from."""
        private = any(rule.matches(host, port) for rule in self._private)
        allowed = private or any(rule.matches(host, port) for rule in self._allowed)
        if self._allowed and not allowed:
            raise InvalidMediaError(
                "The URL's host is not one that this server fetches from (setting media_hosts). "
                "Send the media itself, as a data URI or base64."
            )
        addresses: Sequence[str] = ()
        cause = "it resolves to an address that is not global"
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            cause = repr(error)
        # One inward address is enough: which one gets connected to would be left to chance.
        if addresses and (private or all(is_global(address) for address in addresses)):
            return addresses
        log.info("media host refused", extra={"host": host, "port": port, "cause": cause})
        # The same words for both, or clients could ask which names exist inside.
        raise InvalidMediaError(
            "The URL's host does not resolve to public addresses only. Internal hosts have to be "
            "named in the server's setting media_private_hosts."
        )
