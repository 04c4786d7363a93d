# `python -m tools.client_api` writes this file.
"""Operations of deployments, from the OpenAPI document."""

from collections.abc import AsyncIterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import AsyncResource


class AsyncDeploymentOperations(AsyncResource):
    async def create(self, **fields: Unpack[params.DeploymentCreateParams]) -> models.Deployment:
        """`POST /v1/deployments`: Deploy a model. It can be called once this response is
        sent.
        """
        return await self._api.value(
            models.Deployment, "POST", "/v1/deployments", body=fields, is_created=True
        )

    async def get(self, deployment_id: str) -> models.Deployment:
        """`GET /v1/deployments/{deployment_id}`: Get a deployment with its observed state."""
        return await self._api.value(
            models.Deployment, "GET", f"/v1/deployments/{quoted(deployment_id)}"
        )

    async def update(
        self, deployment_id: str, **fields: Unpack[params.DeploymentUpdateParams]
    ) -> models.Deployment:
        """`PATCH /v1/deployments/{deployment_id}`: Change a deployment. Another engine,
        device, dtype or config creates a version. The version takes over between two
        requests once it has passed its checks. It takes over at once if nothing is
        loaded.
        """
        return await self._api.value(
            models.Deployment, "PATCH", f"/v1/deployments/{quoted(deployment_id)}", body=fields
        )

    async def delete(self, deployment_id: str) -> models.Deleted:
        """`DELETE /v1/deployments/{deployment_id}`: Delete a deployment. Its calls in flight
        finish, then its replicas end.
        """
        return await self._api.value(
            models.Deleted, "DELETE", f"/v1/deployments/{quoted(deployment_id)}"
        )

    async def start(self, deployment_id: str) -> models.Deployment:
        """`POST /v1/deployments/{deployment_id}/start`: Start a stopped deployment, so that
        it accepts calls again.
        """
        return await self._api.value(
            models.Deployment, "POST", f"/v1/deployments/{quoted(deployment_id)}/start"
        )

    async def stop(self, deployment_id: str) -> models.Deployment:
        """`POST /v1/deployments/{deployment_id}/stop`: End a deployment's replicas and
        refuse its calls until it is started.
        """
        return await self._api.value(
            models.Deployment, "POST", f"/v1/deployments/{quoted(deployment_id)}/stop"
        )

    async def rollback(
        self, deployment_id: str, **fields: Unpack[params.RollbackParams]
    ) -> models.Version:
        """`POST /v1/deployments/{deployment_id}/rollback`: Roll back to the version that was
        live before, or to an earlier one.
        """
        return await self._api.value(
            models.Version, "POST", f"/v1/deployments/{quoted(deployment_id)}/rollback", body=fields
        )

    async def set_traffic(
        self, deployment_id: str, **fields: Unpack[params.TrafficParams]
    ) -> models.Deployment:
        """`PUT /v1/deployments/{deployment_id}/traffic`: Distribute a deployment's calls
        among versions.
        """
        return await self._api.value(
            models.Deployment,
            "PUT",
            f"/v1/deployments/{quoted(deployment_id)}/traffic",
            body=fields,
        )

    def events(
        self,
        deployment_id: str,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> AsyncIterator[models.Event]:
        """`GET /v1/deployments/{deployment_id}/events`: List the changes of the deployment's
        observed state.
        """
        return self._api.pages(
            models.Event,
            f"/v1/deployments/{quoted(deployment_id)}/events",
            limit=limit,
            query={"order": order},
        )

    async def logs(self, deployment_id: str, *, tail: int | None = None) -> models.LogLines:
        """`GET /v1/deployments/{deployment_id}/logs`: Get the last log lines of the
        deployment's replicas.
        """
        return await self._api.value(
            models.LogLines,
            "GET",
            f"/v1/deployments/{quoted(deployment_id)}/logs",
            query={"tail": tail},
        )

    async def metrics(
        self, deployment_id: str, *, window_s: int | None = None
    ) -> models.DeploymentMetrics:
        """`GET /v1/deployments/{deployment_id}/metrics`: Get statistics of a deployment's
        calls, step by step. This server remembers one day.
        """
        return await self._api.value(
            models.DeploymentMetrics,
            "GET",
            f"/v1/deployments/{quoted(deployment_id)}/metrics",
            query={"window_s": window_s},
        )

    def list(
        self,
        *,
        search: str | None = None,
        status: params.Status | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> AsyncIterator[models.Deployment]:
        """`GET /v1/deployments`: List the account's deployments."""
        return self._api.pages(
            models.Deployment,
            "/v1/deployments",
            limit=limit,
            query={"search": search, "status": status, "order": order},
        )


class AsyncModels(AsyncResource):
    async def get(self, model: str) -> models.Model:
        """`GET /v1/models/{model}`: Get one model. Its id may contain slashes."""
        return await self._api.value(models.Model, "GET", f"/v1/models/{quoted(model)}")

    def list(self) -> AsyncIterator[models.Model]:
        """`GET /v1/models`: List the models that the key may call."""
        return self._api.pages(models.Model, "/v1/models", is_paged=False)
