# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of machine, from the OpenAPI document."""

from collections.abc import Iterator

from ... import models
from ..api import Resource


class Machine(Resource):
    def get(self) -> models.Machine:
        """`GET /v1/machine`: Get the machine, its engines and its replicas: of all accounts
        for operators, otherwise of the key's own account.
        """
        return self._api.value(models.Machine, "GET", "/v1/machine")

    def health(self) -> models.Health:
        """`GET /health`: Check that the process is alive and makes progress."""
        return self._api.value(models.Health, "GET", "/health")


class Nodes(Resource):
    def list(self) -> Iterator[models.Node]:
        """`GET /v1/nodes`: List the machines that run replicas, each with its memory and
        leases, as this server sees them. Empty if servers run replicas themselves.
        """
        return self._api.pages(models.Node, "/v1/nodes", is_paged=False)
