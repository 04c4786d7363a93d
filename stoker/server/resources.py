"""All resources of a server. A new resource is a folder with a record, and a line here."""

from stoker.inference.resource import RESOURCE as INFERENCE
from stoker.platform.resource import Resources
from stoker.registry.artifacts.imports.resource import RESOURCE as IMPORTS
from stoker.registry.artifacts.resource import RESOURCE as ARTIFACTS
from stoker.registry.deployments.resource import RESOURCE as DEPLOYMENTS
from stoker.registry.files.resource import RESOURCE as FILES
from stoker.server.console.resource import RESOURCE as CONSOLE
from stoker.server.erasure.resource import RESOURCE as ERASURE
from stoker.server.events.resource import RESOURCE as EVENTS
from stoker.server.foundation import RESOURCE as FOUNDATION
from stoker.server.telemetry.resource import RESOURCE as TELEMETRY
from stoker.tenancy.accounts.resource import RESOURCE as ACCOUNTS
from stoker.tenancy.keys.resource import RESOURCE as KEYS
from stoker.tenancy.usage.resource import RESOURCE as USAGE
from stoker.workloads.agents.resource import RESOURCE as AGENTS
from stoker.workloads.batches.resource import RESOURCE as BATCHES
from stoker.workloads.evaluation.checks.resource import RESOURCE as CHECKS
from stoker.workloads.evaluation.replay.resource import RESOURCE as REPLAY
from stoker.workloads.evaluation.trials.resource import RESOURCE as TRIALS
from stoker.workloads.responses.resource import RESOURCE as RESPONSES
from stoker.workloads.rollouts.resource import RESOURCE as ROLLOUTS
from stoker.workloads.videos.resource import RESOURCE as VIDEOS

RESOURCES = Resources(
    (
        FOUNDATION,
        INFERENCE,
        DEPLOYMENTS,
        ROLLOUTS,
        CHECKS,
        REPLAY,
        TRIALS,
        ARTIFACTS,
        IMPORTS,
        KEYS,
        ACCOUNTS,
        ERASURE,
        FILES,
        VIDEOS,
        RESPONSES,
        BATCHES,
        AGENTS,
        TELEMETRY,
        USAGE,
        CONSOLE,
        EVENTS,
    )
)
"""In the order in which routes are matched. Parts are built in the order in which they need each
other.
"""
