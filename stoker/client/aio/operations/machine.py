# `python -m tools.client_api` writes this file.
"""Operations of machine, from the OpenAPI document."""

from collections.abc import AsyncIterator

from ... import models
from ..api import AsyncResource


class AsyncMachine(AsyncResource):
    async def get(self) -> models.Machine:
        """`GET /v1/machine`: Get the machine, its engines and its replicas: of all accounts
        for operators, otherwise of the key's own account.
        """
        return await self._api.value(models.Machine, "GET", "/v1/machine")

    async def health(self) -> models.Health:
        """`GET /health`: Check that the process is alive and makes progress."""
        return await self._api.value(models.Health, "GET", "/health")


class AsyncNodes(AsyncResource):
    def list(self) -> AsyncIterator[models.Node]:
        """`GET /v1/nodes`: List the machines that run replicas, each with its memory and
        leases, as this server sees them. Empty if servers run replicas themselves.
        """
        return self._api.pages(models.Node, "/v1/nodes", is_paged=False)
