"""Checks of deployments as a resource."""

from stoker.inference.calls import Calls
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource
from stoker.platform.web.context import Platform
from stoker.workloads.evaluation.checks.context import CheckContext
from stoker.workloads.evaluation.checks.endpoints import router
from stoker.workloads.evaluation.checks.judges import Judges


def _judges(_parts: ServerParts) -> Judges:
    return Judges()


def _context(parts: ServerParts) -> CheckContext:
    return CheckContext(
        **vars(parts.get(Platform)), calls=parts.get(Calls), judges=parts.get(Judges)
    )


RESOURCE = Resource(
    name="checks",
    parts=[_judges, _context],
    routers=[router],
    closing={"checks": lambda parts: parts.get(Judges).close()},
)
