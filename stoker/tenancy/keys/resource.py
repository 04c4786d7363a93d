"""API keys as a resource."""

from collections.abc import Sequence
from datetime import datetime

from stoker.base.config import Settings
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Upkeep
from stoker.runtime.listening import RuntimeListener
from stoker.store.db import Database
from stoker.store.servers import Servers
from stoker.tenancy.keys import shared_limits
from stoker.tenancy.keys.endpoints import router
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.limits import RateLimits
from stoker.tenancy.keys.sessions import Sessions
from stoker.tenancy.keys.shared_limits import SharedLimits


def _keyring(parts: ServerParts) -> Keyring:
    return Keyring(parts.get(Database), parts.get(Settings).key_cache_s)


def _sessions(parts: ServerParts) -> Sessions:
    return Sessions(parts.get(Database), parts.get(Keyring), parts.get(Settings).key_cache_s)


def _rate_limits(parts: ServerParts) -> RateLimits:
    database = parts.get(Database)
    if database.is_sqlite:
        return RateLimits()
    servers = parts.get(Servers)
    return SharedLimits(database, lambda: servers.count)


def _listeners(parts: ServerParts) -> Sequence[RuntimeListener]:
    return [parts.get(RateLimits)]


async def _balance(parts: ServerParts) -> None:
    limits = parts.get(RateLimits)
    if isinstance(limits, SharedLimits):
        await limits.run()


async def _flush_last_used(parts: ServerParts, _now: datetime) -> None:
    await parts.get(Keyring).flush_last_used()


async def _forget(parts: ServerParts, now: datetime) -> None:
    await parts.get(Keyring).forget_revoked(now)
    await shared_limits.forget_rested(parts.get(Database))


RESOURCE = Resource(
    name="keys",
    parts=[_keyring, _sessions, _rate_limits],
    routers=[router],
    peer_tasks={"limits of keys": _balance},
    listeners=_listeners,
    upkeep=Upkeep(each_server=_flush_last_used, shared_hourly=_forget),
    closing={"last use of keys": lambda parts: parts.get(Keyring).flush_last_used()},
)
