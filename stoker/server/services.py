"""Builds all parts of a server. Requests find them by type."""

from stoker.base.config import Settings
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources
from stoker.platform.web.context import Platform
from stoker.server.resources import RESOURCES
from stoker.server.telemetry import traces
from stoker.server.telemetry.traces import Traces


def build_services(settings: Settings, resources: Resources = RESOURCES) -> ServerParts:
    """Builds the parts of all resources, without starting them.

    Raises `MissingPartError` if a resource needs a part that no resource provides.
    """
    parts = ServerParts()
    parts.add(Settings, settings)
    parts.add(Resources, resources)
    for resource in resources:
        parts.provide(*resource.parts)
    # Checks the settings before it creates anything.
    parts.get(Platform)
    if tracing := traces.from_environment():
        parts.add(Traces, tracing)
    parts.build_all()
    return parts
