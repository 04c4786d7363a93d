"""`GET /v1/models`: deployments that the key may call, in the formats of OpenAI's and Anthropic's
clients.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from stoker.base.errors import InvalidRequestError, ModelNotFoundError, NotFoundError, responses
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


class AnthropicModel(BaseModel):
    type: Literal["model"] = "model"
    id: str = Field(description="The model id to send as `model`.")
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: None = None
    max_tokens: None = None
    capabilities: None = None


class AnthropicModelList(BaseModel):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


AnthropicVersion = Annotated[
    str | None,
    Header(max_length=64, description="Any value: the answer is in Anthropic's format."),
]
_PAGED = "With `anthropic-version` only: "


class ModelsPage(BaseModel):
    """Page of a list in Anthropic's format."""

    limit: int = Field(default=20, ge=1, le=1000, description=f"{_PAGED}models in the answer.")
    after_id: str | None = Field(
        default=None, max_length=128, description=f"{_PAGED}the model before the page."
    )
    before_id: str | None = Field(
        default=None, max_length=128, description=f"{_PAGED}the model after the page."
    )


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


def _anthropic(entry: DirectoryEntry) -> AnthropicModel:
    return AnthropicModel(id=entry.model, display_name=entry.model, created_at=entry.created_at)


def _listed(entries: Sequence[DirectoryEntry], page: ModelsPage) -> AnthropicModelList:
    """Returns the models next to one of them. Raises `InvalidRequestError` for an unknown one."""
    models = [entry.model for entry in entries]
    begin, end = 0, len(models)
    if page.after_id is not None:
        begin = _position(models, page.after_id, "after_id") + 1
    if page.before_id is not None:
        end = _position(models, page.before_id, "before_id")
        begin = max(begin, end - page.limit)
    listed = [_anthropic(entry) for entry in entries[begin:end][: page.limit]]
    has_more = begin > 0 if page.before_id is not None else begin + len(listed) < end
    return AnthropicModelList(
        data=listed,
        has_more=has_more,
        first_id=listed[0].id if listed else None,
        last_id=listed[-1].id if listed else None,
    )


def _position(models: Sequence[str], model: str, field: str) -> int:
    if model not in models:
        raise InvalidRequestError(f"'{field}' is not the id of a model in this list.", param=field)
    return models.index(model)


@router.get("", responses=responses(NotFoundError))
async def list_models(
    caller: ModelCaller,
    context: ContextDep,
    page: Annotated[ModelsPage, Query(include_in_schema=False)],
    anthropic_version: AnthropicVersion = None,
) -> ModelList | AnthropicModelList:
    """List the models that the key may call."""
    entries = context.directory.visible(caller)
    if anthropic_version is not None:
        return _listed(entries, page)
    return ModelList(data=[_model(context, entry) for entry in entries])


@router.get("/{model:path}", responses=responses(ModelNotFoundError))
async def get_model(
    model: str,
    caller: ModelCaller,
    context: ContextDep,
    anthropic_version: AnthropicVersion = None,
) -> Model | AnthropicModel:
    """Get one model. Its id may contain slashes."""
    entry = await context.directory.resolve(caller, model)
    return _model(context, entry) if anthropic_version is None else _anthropic(entry)
