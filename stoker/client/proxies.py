"""Chooses the environment's proxy for a server. Addresses of this machine bypass it."""

import importlib
import sys
from ipaddress import ip_address
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from .errors import WrongUseError

if TYPE_CHECKING:
    import httpx

HttpClient = TypeVar("HttpClient", bound="httpx.Client | httpx.AsyncClient")

_LOCAL_NAME = "localhost"
_COMMAND_LINE = "httpx._main"


def is_loopback(url: str) -> bool:
    """True if a URL points to this machine. Only `localhost` names are resolved."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == _LOCAL_NAME or host.endswith(f".{_LOCAL_NAME}"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def proxy_of(url: str) -> str | None:
    """Returns the proxy that the environment names for a URL, if any."""
    parts = urlsplit(url)
    if is_loopback(url):
        return None
    # Imported here because it takes 17 ms and few commands need it.
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def import_httpx() -> ModuleType:
    """Returns the module httpx, imported without its command line.

    httpx imports its command line, which imports click, rich and pygments, if these are installed.
    That takes longer than httpx itself.
    """
    if "httpx" in sys.modules:
        return sys.modules["httpx"]
    # httpx then works without it, as if click were not installed.
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("httpx")
    finally:
        sys.modules.pop(_COMMAND_LINE, None)


def client(kind: type[HttpClient], url: str, **options: Any) -> HttpClient:
    """Returns an HTTP client for one server. Raises `WrongUseError` for an unusable proxy."""
    import httpx

    if is_loopback(url):
        if options.get("verify"):
            # Certificates that the environment names still apply.
            options["verify"] = httpx.create_ssl_context(trust_env=True)
        return kind(**options, trust_env=False)
    try:
        return kind(**options)
    except ImportError as error:
        raise WrongUseError(
            "The environment sets a SOCKS proxy, but its library is not installed.",
            hint=f"Install the package socksio, or unset ALL_PROXY, or set {_bypass(url)}.",
        ) from error
    except (ValueError, httpx.InvalidURL) as error:
        raise WrongUseError(
            f"The proxy set in the environment cannot be used: {error}",
            hint=f"Correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or set {_bypass(url)}.",
        ) from error


def hint(url: str) -> str | None:
    """Returns a hint for a server that was not reached through a proxy, if any."""
    proxy = proxy_of(url)
    if proxy is None:
        return None
    shown = urlsplit(proxy)._replace(netloc=urlsplit(proxy).netloc.rpartition("@")[2]).geturl()
    return f"The environment's proxy {shown} was used. To bypass it, set {_bypass(url)}."


def _bypass(url: str) -> str:
    return f"NO_PROXY={urlsplit(url).hostname}"
