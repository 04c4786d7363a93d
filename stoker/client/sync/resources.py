# `python -m tools.client_api` writes this file from its asynchronous twin.
"""All resources of a server, from the OpenAPI document."""

from .api import Api
from .extended import Artifacts, Deployments, Events, Files, Runs, Tasks, Versions, Videos
from .operations.accounts import Accounts, Keys, Quotas
from .operations.agents import Agents
from .operations.batches import Batches
from .operations.deployments import Models
from .operations.machine import Machine, Nodes
from .operations.usage import Credits, Prices, Usage
from .operations.versions import Checks, Trials


class Resources:
    """The resources of a server."""

    def __init__(self, api: Api) -> None:
        self.accounts = Accounts(api)
        self.keys = Keys(api)
        self.quotas = Quotas(api)
        self.artifacts = Artifacts(api)
        self.deployments = Deployments(api)
        self.models = Models(api)
        self.versions = Versions(api)
        self.checks = Checks(api)
        self.trials = Trials(api)
        self.agents = Agents(api)
        self.runs = Runs(api)
        self.files = Files(api)
        self.videos = Videos(api)
        self.batches = Batches(api)
        self.usage = Usage(api)
        self.credits = Credits(api)
        self.prices = Prices(api)
        self.machine = Machine(api)
        self.nodes = Nodes(api)
        self.events = Events(api)
        self.tasks = Tasks(api)
