"""`GET /v1/models`: deployments that the key may call, in the format of OpenAI's clients."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from stoker.base.errors import ModelNotFoundError, NotFoundError, responses
from stoker.models.tasks.registry import endpoints
from stoker.registry.deployments.context import ContextDep, DeploymentContext
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.observed import Status
from stoker.runtime.specification import Readiness
from stoker.tenancy.keys.auth import ModelCaller

router = APIRouter(prefix="/v1/models", tags=["Models"])


class Model(BaseModel):
    id: str = Field(description="The model id to send as `model`.")
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds.")
    owned_by: str
    pipeline: str
    status: Status
    readiness: Readiness | SkipJsonSchema[str]
    endpoints: list[str] = Field(description="The paths that serve this model.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def _model(context: DeploymentContext, entry: DirectoryEntry) -> Model:
    stats = context.runtime.stats(entry.version_id)
    return Model(
        id=entry.model,
        created=int(entry.created_at.timestamp()),
        owned_by=entry.account_id,
        pipeline=entry.pipeline,
        status=stats.status if stats else Status.IDLE,
        readiness=entry.readiness,
        endpoints=endpoints(entry.pipeline),
    )


@router.get("", responses=responses(NotFoundError))
async def list_models(caller: ModelCaller, context: ContextDep) -> ModelList:
    """List the models that the key may call."""
    entries = context.directory.visible(caller)
    return ModelList(data=[_model(context, entry) for entry in entries])


@router.get("/{model:path}", responses=responses(ModelNotFoundError))
async def get_model(model: str, caller: ModelCaller, context: ContextDep) -> Model:
    """Get one model. Its id may contain slashes."""
    return _model(context, await context.directory.resolve(caller, model))
