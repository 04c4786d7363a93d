# `python -m tools.client_api` writes this file.
"""All resources of a server, from the OpenAPI document."""

from .api import AsyncApi
from .extended import (
    AsyncArtifacts,
    AsyncDeployments,
    AsyncEvents,
    AsyncFiles,
    AsyncRuns,
    AsyncTasks,
    AsyncVersions,
    AsyncVideos,
)
from .operations.accounts import AsyncAccounts, AsyncKeys, AsyncQuotas
from .operations.agents import AsyncAgents
from .operations.batches import AsyncBatches
from .operations.deployments import AsyncModels
from .operations.machine import AsyncMachine, AsyncNodes
from .operations.usage import AsyncCredits, AsyncPrices, AsyncUsage
from .operations.versions import AsyncChecks, AsyncTrials


class AsyncResources:
    """The resources of a server."""

    def __init__(self, api: AsyncApi) -> None:
        self.accounts = AsyncAccounts(api)
        self.keys = AsyncKeys(api)
        self.quotas = AsyncQuotas(api)
        self.artifacts = AsyncArtifacts(api)
        self.deployments = AsyncDeployments(api)
        self.models = AsyncModels(api)
        self.versions = AsyncVersions(api)
        self.checks = AsyncChecks(api)
        self.trials = AsyncTrials(api)
        self.agents = AsyncAgents(api)
        self.runs = AsyncRuns(api)
        self.files = AsyncFiles(api)
        self.videos = AsyncVideos(api)
        self.batches = AsyncBatches(api)
        self.usage = AsyncUsage(api)
        self.credits = AsyncCredits(api)
        self.prices = AsyncPrices(api)
        self.machine = AsyncMachine(api)
        self.nodes = AsyncNodes(api)
        self.events = AsyncEvents(api)
        self.tasks = AsyncTasks(api)
