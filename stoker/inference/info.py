"""`GET /info` of Text Embeddings Inference: facts about a deployed model."""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

import stoker
from stoker.base.errors import CALLING, responses
from stoker.inference.routes import Prefer, session_of, wait_seconds
from stoker.models.tasks.other_servers.fields import TAG
from stoker.models.tasks.other_servers.info import INFO, InfoRequest
from stoker.registry.deployments import repository
from stoker.registry.deployments.context import ContextDep
from stoker.runtime.interface import Call
from stoker.tenancy.keys.auth import ModelCaller

router = APIRouter(tags=[TAG])


class EmbeddingType(BaseModel):
    pooling: str | None = Field(
        description="`cls`, `mean`, `last_token`, `splade` or another name of "
        "sentence-transformers. Null if the model has several ways, or a vector per token."
    )


class LabelNames(BaseModel):
    id2label: dict[str, str]
    label2id: dict[str, int]


class TeiModelType(BaseModel):
    """One of the members."""

    embedding: EmbeddingType | None = None
    reranker: LabelNames | None = Field(default=None, description="A model with one label.")
    classifier: LabelNames | None = None


class TeiInfo(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    model_id: str = Field(description="The model id to send as `model`.")
    model_sha: str | None = Field(
        description="Commit of the hub that the files were imported from. Null for other files."
    )
    model_dtype: str = Field(examples=["float32"])
    model_type: TeiModelType
    max_concurrent_requests: int = Field(description="`max_queue` of the deployment.")
    max_input_length: int | None = Field(
        description="Maximum tokens of an input. Null if the model has no limit."
    )
    max_batch_requests: None = Field(description="Always null: batches are measured in tokens.")
    max_client_batch_size: int = Field(description="`STOKER_LIST_LIMIT` of the server.")
    auto_truncate: bool = Field(description="Always false: requests choose by `truncate`.")
    version: str = Field(description="Version of Stoker.")


@router.get(
    "/info",
    response_model_exclude_unset=True,
    responses=responses(*CALLING),
    status_code=HTTPStatus.OK,
)
async def get_info(
    request: Request,
    caller: ModelCaller,
    context: ContextDep,
    model: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=128,
            description="Model id of the deployment. Required if the key covers several.",
        ),
    ] = None,
    prefer: Prefer = None,
) -> TeiInfo:
    """Describe a model for vectors, ranking or classification. Loads the model, as a call does."""
    session = await session_of(request)
    entry = await session.target(InfoRequest(model=model), INFO.pipelines)
    call = Call(task=INFO.name, items=[None], parameters={}, single=True, finishing={})
    wait_s = wait_seconds(context.settings, prefer or "")
    loaded: dict[str, Any] = msgspec.json.decode(
        await session.calls.run(entry, call, wait_s=wait_s)
    )
    async with context.database.reading() as database:
        max_queue, origin = await repository.limit_and_origin(database, entry.deployment_id)
    return TeiInfo(
        model_id=entry.model,
        model_sha=(origin or {}).get("commit"),
        max_concurrent_requests=max_queue,
        max_batch_requests=None,
        max_client_batch_size=context.settings.list_limit,
        auto_truncate=False,
        version=stoker.__version__,
        **loaded,
    )
