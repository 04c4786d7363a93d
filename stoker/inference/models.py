"""`GET /v1/models`: deployments that the key may call, in the formats of OpenAI's and Anthropic's
clients.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from stoker.base.errors import InvalidRequestError, ModelNotFoundError, NotFoundError, responses
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT
from stoker.models.tasks.registry import GENERATING, endpoints
from stoker.platform.web.outage import lost_database
from stoker.registry.deployments import repository
from stoker.registry.deployments.context import ContextDep, DeploymentContext
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.observed import Status
from stoker.runtime.specification import Readiness
from stoker.tenancy.keys.auth import ModelCaller

_AT_ONCE = 500
"""Ids in one statement."""
_MOST_KNOWN = 10_000

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
    max_model_len: int | None = Field(
        description="Maximum tokens of prompt and answer of a language model, as its files say. "
        "Null if unknown. A device with little memory may have room for fewer."
    )
    capabilities: list[str] | None = Field(
        description="What the model can do: `chat`, `completion`, `tools`, `reasoning`, `vision`, "
        "`structured_outputs`, `embeddings`, `rerank` and others. Null if unknown."
    )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class AnthropicModel(BaseModel):
    type: Literal["model"] = "model"
    id: str = Field(description="The model id to send as `model`.")
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = Field(description="See `max_model_len` of the other format.")
    max_tokens: int | None = Field(
        description="Maximum tokens of an answer. Prompt and answer share the context."
    )
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


_BY_PATH: Mapping[str, str] = {
    "/v1/completions": "completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/similarity": "similarity",
    "/v1/moderations": "moderation",
    "/v1/images/generations": "image_generation",
    "/v1/images/edits": "image_editing",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/speech": "speech",
    "/v1/videos": "video_generation",
}
"""Maps an endpoint to the capability of the models that it serves."""


class ModelFacts(NamedTuple):
    """Facts about a model from its files. None if unknown."""

    context_tokens: int | None = None
    abilities: Sequence[str] | None = None


_UNKNOWN = ModelFacts()
_known: OrderedDict[str, ModelFacts] = OrderedDict()
"""Facts by version, whose files never change. So the list needs the database only once."""


async def _facts(
    context: DeploymentContext, entries: Sequence[DirectoryEntry]
) -> Mapping[str, ModelFacts]:
    """Returns facts of language models by version. Leaves out models if the database does not
    answer.
    """
    missing = {
        entry.base_id or entry.deployment_id: entry.version_id
        for entry in entries
        if entry.pipeline in GENERATING and entry.version_id not in _known
    }
    ids = sorted(missing)
    try:
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            async with context.database.reading() as session:
                found = await repository.inspections(session, some)
            for identifier in some:
                inspection = found.get(identifier, {})
                _known[missing[identifier]] = ModelFacts(
                    inspection.get("context_tokens"), inspection.get("abilities")
                )
    except Exception as error:
        if lost_database(error) is None:
            raise
    facts = {
        entry.version_id: _known[entry.version_id]
        for entry in entries
        if entry.version_id in _known
    }
    while len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    return facts


def _capabilities(entry: DirectoryEntry, facts: ModelFacts) -> list[str] | None:
    paths = endpoints(entry.pipeline)
    found = [name for path, name in _BY_PATH.items() if path in paths]
    if entry.pipeline in GENERATING:
        if facts.abilities is None:
            return None
        found += [*facts.abilities, "structured_outputs"]
        if entry.pipeline == IMAGE_TEXT_TO_TEXT:
            found.append("vision")
    return found


def _model(context: DeploymentContext, entry: DirectoryEntry, facts: ModelFacts) -> Model:
    stats = context.runtime.stats(entry.version_id)
    return Model(
        id=entry.model,
        created=int(entry.created_at.timestamp()),
        owned_by=entry.account_id,
        pipeline=entry.pipeline,
        status=stats.status if stats else Status.IDLE,
        readiness=entry.readiness,
        endpoints=endpoints(entry.pipeline),
        max_model_len=facts.context_tokens,
        capabilities=_capabilities(entry, facts),
    )


def _anthropic(entry: DirectoryEntry, facts: ModelFacts) -> AnthropicModel:
    return AnthropicModel(
        id=entry.model,
        display_name=entry.model,
        created_at=entry.created_at,
        max_input_tokens=facts.context_tokens,
        max_tokens=facts.context_tokens,
    )


def _listed(
    entries: Sequence[DirectoryEntry], facts: Mapping[str, ModelFacts], page: ModelsPage
) -> AnthropicModelList:
    """Returns the models next to one of them. Raises `InvalidRequestError` for an unknown one."""
    models = [entry.model for entry in entries]
    begin, end = 0, len(models)
    if page.after_id is not None:
        begin = _position(models, page.after_id, "after_id") + 1
    if page.before_id is not None:
        end = _position(models, page.before_id, "before_id")
        begin = max(begin, end - page.limit)
    listed = [
        _anthropic(entry, facts.get(entry.version_id, _UNKNOWN))
        for entry in entries[begin:end][: page.limit]
    ]
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
    facts = await _facts(context, entries)
    if anthropic_version is not None:
        return _listed(entries, facts, page)
    return ModelList(
        data=[_model(context, entry, facts.get(entry.version_id, _UNKNOWN)) for entry in entries]
    )


@router.get("/{model:path}", responses=responses(ModelNotFoundError))
async def get_model(
    model: str,
    caller: ModelCaller,
    context: ContextDep,
    anthropic_version: AnthropicVersion = None,
) -> Model | AnthropicModel:
    """Get one model. Its id may contain slashes."""
    entry = await context.directory.resolve(caller, model)
    facts = (await _facts(context, [entry])).get(entry.version_id, _UNKNOWN)
    if anthropic_version is not None:
        return _anthropic(entry, facts)
    return _model(context, entry, facts)
