"""Imports from a hub as a resource."""

from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.resource import JobQueue, Resource
from stoker.platform.web.context import Platform
from stoker.registry.artifacts.imports.context import ImportContext
from stoker.registry.artifacts.imports.endpoints import router
from stoker.registry.artifacts.imports.work import ImportJob
from stoker.registry.hub.client import Hub
from stoker.store.tables.imports import Import

AT_ONCE = 16
"""Maximum number of concurrent imports. They mostly wait for a hub."""
TURN_S = 600.0
"""Seconds for which an import keeps its slot while another account waits. It later continues from
the same point.
"""


def _context(parts: ServerParts) -> ImportContext:
    platform = parts.get(Platform)
    settings = platform.settings
    return ImportContext(
        **vars(platform),
        hub=Hub(
            settings.hub_endpoint,
            token=settings.hub_token.get_secret_value() if settings.hub_token else None,
            private_hosts=settings.hub_private_hosts,
        ),
        jobs=JobRunner(
            platform.database,
            lease_s=settings.job_lease_s,
            at_once=AT_ONCE,
            share=lambda _: 1,
            turn_s=TURN_S,
        ),
    )


RESOURCE = Resource(
    name="imports",
    parts=[_context],
    routers=[router],
    jobs=JobQueue(
        task="imports",
        kind="import",
        table=Import,
        runner=lambda parts: parts.get(ImportContext).jobs,
        work=lambda parts: ImportJob(parts.get(ImportContext)),
    ),
    closing={"hub": lambda parts: parts.get(ImportContext).hub.close()},
)
