# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of artifacts, from the OpenAPI document."""

from collections.abc import Iterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import Resource


class ArtifactOperations(Resource):
    def create(self, **fields: Unpack[params.ArtifactCreateParams]) -> models.Artifact:
        """`POST /v1/model-artifacts`: Create an artifact. Model files can then be uploaded
        for it.
        """
        return self._api.value(
            models.Artifact, "POST", "/v1/model-artifacts", body=fields, is_created=True
        )

    def get(self, artifact_id: str) -> models.Artifact:
        """`GET /v1/model-artifacts/{artifact_id}`: Get an artifact."""
        return self._api.value(models.Artifact, "GET", f"/v1/model-artifacts/{quoted(artifact_id)}")

    def update(
        self, artifact_id: str, **fields: Unpack[params.ArtifactUpdateParams]
    ) -> models.Artifact:
        """`PATCH /v1/model-artifacts/{artifact_id}`: Rename an artifact."""
        return self._api.value(
            models.Artifact, "PATCH", f"/v1/model-artifacts/{quoted(artifact_id)}", body=fields
        )

    def delete(self, artifact_id: str) -> models.Deleted:
        """`DELETE /v1/model-artifacts/{artifact_id}`: Delete an artifact and its files. No
        deployment may use it.
        """
        return self._api.value(
            models.Deleted, "DELETE", f"/v1/model-artifacts/{quoted(artifact_id)}"
        )

    def card(self, artifact_id: str) -> str:
        """`GET /v1/model-artifacts/{artifact_id}/card`: Get the model card: the uploaded
        README.md, up to 1 MiB of it.
        """
        return self._api.text("GET", f"/v1/model-artifacts/{quoted(artifact_id)}/card")

    def start_import(
        self, artifact_id: str, **fields: Unpack[params.ImportCreateParams]
    ) -> models.ArtifactAnswer:
        """`POST /v1/model-artifacts/{artifact_id}/imports`: Import a revision of a hub's
        repository. The import is a job that is durable once this response is sent. It
        ends like a completed upload.
        """
        return self._api.value(
            models.ArtifactAnswer,
            "POST",
            f"/v1/model-artifacts/{quoted(artifact_id)}/imports",
            body=fields,
            is_created=True,
        )

    def cancel_import(self, artifact_id: str, import_id: str) -> models.Deleted:
        """`DELETE /v1/model-artifacts/{artifact_id}/imports/{import_id}`: Cancel an import.
        The artifact keeps its previous files.
        """
        return self._api.value(
            models.Deleted,
            "DELETE",
            f"/v1/model-artifacts/{quoted(artifact_id)}/imports/{quoted(import_id)}",
        )

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> Iterator[models.Artifact]:
        """`GET /v1/model-artifacts`: List the account's artifacts."""
        return self._api.pages(
            models.Artifact, "/v1/model-artifacts", limit=limit, query={"order": order}
        )
