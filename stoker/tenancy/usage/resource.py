"""Usage, prices and credits as a resource."""

from stoker.base.config import Settings
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource
from stoker.platform.web.context import Platform
from stoker.store.db import Database
from stoker.store.servers import Servers
from stoker.tenancy.usage.balances import CreditCheck
from stoker.tenancy.usage.counts import Counts
from stoker.tenancy.usage.endpoints import router
from stoker.tenancy.usage.metering import Metering
from stoker.tenancy.usage.metrics import balances_left


def _credits(_parts: ServerParts) -> CreditCheck:
    return CreditCheck()


def _counts(_parts: ServerParts) -> Counts:
    return Counts()


def _metering(parts: ServerParts) -> Metering:
    servers = parts.get(Servers)
    return Metering(
        parts.get(Database),
        parts.get(Platform).runtime.meter,
        parts.get(CreditCheck),
        parts.get(Counts),
        starting_credits=parts.get(Settings).starting_credits,
        is_first=lambda: servers.is_first,
    )


RESOURCE = Resource(
    name="usage",
    parts=[_credits, _counts, _metering],
    routers=[router],
    prepare=lambda parts: parts.get(Metering).open(),
    tasks={"metering": lambda parts: parts.get(Metering).run()},
    listeners=lambda parts: [parts.get(Counts)],
    metrics=lambda parts: [balances_left(parts.get(Database))],
    closing={"metering": lambda parts: parts.get(Metering).close()},
)
