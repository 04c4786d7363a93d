"""Facts about a loaded model, for `GET /info` of Text Embeddings Inference."""

from collections.abc import Mapping
from typing import Any

from stoker.models.stages.base import Stages
from stoker.models.stages.embedding import EmbeddingStages
from stoker.models.stages.sparse import SparseStages
from stoker.models.stages.text import MAX_TOKENS, TextStages
from stoker.models.tasks.base import Task, TaskRequest

PIPELINES = ("feature-extraction", "text-ranking", "text-classification")
"""Pipelines that have a model type there."""
_POOLING: Mapping[str, str] = {"lasttoken": "last_token"}
"""Maps ways of pooling to TEI's names, if they differ."""


def _facts(stages: Stages, _item: Any, _parameters: Mapping[str, Any]) -> dict[str, Any]:
    most = stages.max_tokens() if isinstance(stages, TextStages) else MAX_TOKENS
    return {
        "model_dtype": str(stages.config.dtype).removeprefix("torch."),
        "model_type": _model_type(stages),
        "max_input_length": most if most < MAX_TOKENS else None,
    }


def _model_type(stages: Stages) -> dict[str, Any]:
    if isinstance(stages, EmbeddingStages):
        return {"embedding": {"pooling": _pooling(stages)}}
    labels: Mapping[int, str] = stages.config.id2label
    named = {
        "id2label": {str(number): label for number, label in labels.items()},
        "label2id": {label: number for number, label in labels.items()},
    }
    return {"reranker" if len(labels) == 1 else "classifier": named}


def _pooling(stages: EmbeddingStages) -> str | None:
    if isinstance(stages, SparseStages):
        return "splade"
    ways = stages.about.pooling if stages.vectors == "dense" else ()
    return _POOLING.get(ways[0], ways[0]) if len(ways) == 1 else None


class InfoRequest(TaskRequest):
    """Request without inputs. `GET /info` has no body."""

    def items(self) -> tuple[list[Any], bool]:
        return [None], True


INFO = Task(
    pipeline=PIPELINES[0],
    also=PIPELINES[1:],
    name="info",
    path="/info",
    summary="Describe a model",
    request=InfoRequest,
    result=dict[str, Any],
    example={},
    direct=_facts,
)
