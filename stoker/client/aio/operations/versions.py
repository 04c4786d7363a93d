# `python -m tools.client_api` writes this file.
"""Operations of versions, from the OpenAPI document."""

from collections.abc import AsyncIterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import AsyncResource


class AsyncVersionOperations(AsyncResource):
    async def create(
        self, deployment_id: str, **fields: Unpack[params.VersionCreateParams]
    ) -> models.Version:
        """`POST /v1/deployments/{deployment_id}/versions`: Create a version. It is loaded,
        tried and checked, and then takes over between two requests. The rollout is a job
        that is durable once this response is sent.
        """
        return await self._api.value(
            models.Version,
            "POST",
            f"/v1/deployments/{quoted(deployment_id)}/versions",
            body=fields,
            is_created=True,
        )

    async def get(self, deployment_id: str, version_id: str) -> models.Version:
        """`GET /v1/deployments/{deployment_id}/versions/{version_id}`: Get a version: its
        progress, or why it failed.
        """
        return await self._api.value(
            models.Version,
            "GET",
            f"/v1/deployments/{quoted(deployment_id)}/versions/{quoted(version_id)}",
        )

    async def delete(self, deployment_id: str, version_id: str) -> models.Deleted:
        """`DELETE /v1/deployments/{deployment_id}/versions/{version_id}`: Delete a version
        that is not live. A version in preparation is abandoned.
        """
        return await self._api.value(
            models.Deleted,
            "DELETE",
            f"/v1/deployments/{quoted(deployment_id)}/versions/{quoted(version_id)}",
        )

    async def promote(self, deployment_id: str, version_id: str) -> models.Version:
        """`POST /v1/deployments/{deployment_id}/versions/{version_id}/promote`: Promote a
        version. It takes over at once if it is loaded. Otherwise it is loaded and checked
        first.
        """
        return await self._api.value(
            models.Version,
            "POST",
            f"/v1/deployments/{quoted(deployment_id)}/versions/{quoted(version_id)}/promote",
        )

    async def compare(self, deployment_id: str, version_id: str) -> models.VersionComparison:
        """`GET /v1/deployments/{deployment_id}/versions/{version_id}/comparison`: Compare a
        version's answers to mirrored calls with those of the live version.
        """
        return await self._api.value(
            models.VersionComparison,
            "GET",
            f"/v1/deployments/{quoted(deployment_id)}/versions/{quoted(version_id)}/comparison",
        )

    def list(
        self,
        deployment_id: str,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> AsyncIterator[models.Version]:
        """`GET /v1/deployments/{deployment_id}/versions`: List a deployment's versions,
        newest first.
        """
        return self._api.pages(
            models.Version,
            f"/v1/deployments/{quoted(deployment_id)}/versions",
            limit=limit,
            query={"order": order},
        )


class AsyncChecks(AsyncResource):
    async def get(self, deployment_id: str) -> models.Checks:
        """`GET /v1/deployments/{deployment_id}/checks`: Get a deployment's checks and the
        report of their last run.
        """
        return await self._api.value(
            models.Checks, "GET", f"/v1/deployments/{quoted(deployment_id)}/checks"
        )

    async def set(
        self, deployment_id: str, **fields: Unpack[params.ChecksUpdateParams]
    ) -> models.Checks:
        """`PUT /v1/deployments/{deployment_id}/checks`: Set the expected answers of a
        deployment, in place of earlier ones.
        """
        return await self._api.value(
            models.Checks, "PUT", f"/v1/deployments/{quoted(deployment_id)}/checks", body=fields
        )

    async def run(self, deployment_id: str) -> models.Report:
        """`POST /v1/deployments/{deployment_id}/checks/run`: Run all of a deployment's
        checks now. Waits for a model that is not loaded.
        """
        return await self._api.value(
            models.Report, "POST", f"/v1/deployments/{quoted(deployment_id)}/checks/run"
        )


class AsyncTrials(AsyncResource):
    async def create(
        self, deployment_id: str, **fields: Unpack[params.TrialCreateParams]
    ) -> models.Trial:
        """`POST /v1/deployments/{deployment_id}/trials`: Measure the model on each engine
        and in each precision. The trial is a job that is durable once this response is
        sent. Its work yields to calls.
        """
        return await self._api.value(
            models.Trial,
            "POST",
            f"/v1/deployments/{quoted(deployment_id)}/trials",
            body=fields,
            is_created=True,
        )

    async def get(self, deployment_id: str, trial_id: str) -> models.Trial:
        """`GET /v1/deployments/{deployment_id}/trials/{trial_id}`: Get a trial with its
        measurements so far.
        """
        return await self._api.value(
            models.Trial,
            "GET",
            f"/v1/deployments/{quoted(deployment_id)}/trials/{quoted(trial_id)}",
        )

    def list(
        self,
        deployment_id: str,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> AsyncIterator[models.Trial]:
        """`GET /v1/deployments/{deployment_id}/trials`: List a deployment's trials. The last
        twenty are kept.
        """
        return self._api.pages(
            models.Trial,
            f"/v1/deployments/{quoted(deployment_id)}/trials",
            limit=limit,
            query={"order": order},
        )
