"""Reranking: documents by their relevance to a query, in the format of Cohere and Jina."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired, cast

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from stoker.models.stages.base import Sample
from stoker.models.stages.pairs import Relevance, RelevanceStages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.field_checks import CheckedFields

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

MAX_DOCUMENTS = 1000


class TextDocument(TypedDict):
    text: str


def _text(value: Any) -> Any:
    if isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"text"}:
        return cast("dict[str, Any]", value)["text"]
    return cast("Any", value)


Document = Annotated[
    str,
    Field(min_length=1),
    BeforeValidator(_text, json_schema_input_type=str | TextDocument),
]


class RerankRequest(TaskRequest, CheckedFields):
    endpoint = "rerank"

    query: str = Field(min_length=1, description="Query that the documents are ranked by.")
    documents: list[Document] = Field(
        min_length=1,
        max_length=MAX_DOCUMENTS,
        description="Texts, or objects with the text as `text`.",
    )
    top_n: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DOCUMENTS,
        description="Number of documents to return, best first. Default: all.",
    )
    return_documents: bool = Field(
        default=False, description="Return each document's text with its score."
    )
    max_tokens_per_doc: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Truncate every document to this many tokens, without special tokens.",
    )
    truncation: bool = Field(
        default=False,
        description=(
            "Truncate documents that are too long for the model together with the "
            "query. Default: they are rejected, with the numbers."
        ),
    )

    input_fields: ClassVar[tuple[str, ...]] = ("documents", "query")

    def items(self) -> tuple[list[Any], bool]:
        return [{"query": self.query, "document": document} for document in self.documents], False

    def parameters(self) -> dict[str, Any]:
        most = self.max_tokens_per_doc
        limits = {} if most is None else {"max_tokens_per_doc": most}
        return {"truncation": self.truncation, **limits}

    def finishing(self) -> dict[str, Any]:
        return {
            "id": f"rerank-{secrets.token_hex(12)}",
            "top_n": self.top_n,
            "return_documents": self.return_documents,
        }


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict):
    """A ranked document. `index` is its position in the request; a higher `relevance_score` is more
    relevant.
    """

    index: int
    relevance_score: float
    document: NotRequired[RankedDocument]


class RankingUsage(TypedDict):
    """Number of tokens that the model read. The query's tokens count once per document."""

    prompt_tokens: int
    total_tokens: int


class Ranking(TypedDict):
    id: str
    model: str
    results: list[Ranked]
    usage: RankingUsage


class RerankStages(RelevanceStages):
    auto_class = "AutoModelForSequenceClassification"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return [self.relevance_sample(item, parameters)]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Relevance:
        return self.relevance(outputs[0], parameters)


def _ranking(work: "Work", documents: Sequence[Relevance]) -> Ranking:
    """Returns the answer. Documents of equal relevance keep their order."""
    tokens = sum(document.tokens for document in documents)
    places = sorted(
        range(len(documents)),
        key=lambda index: (documents[index].score, documents[index].order),
        reverse=True,
    )
    results: list[Ranked] = [
        {"index": index, "relevance_score": documents[index].score}
        for index in places[: work.finishing["top_n"]]
    ]
    if work.finishing["return_documents"]:
        for result in results:
            result["document"] = {"text": work.items[result["index"]]["document"]}
    return {
        "id": work.finishing["id"],
        "model": work.finishing["model"],
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _place(field: str, index: int) -> str:
    return f"documents[{index}]"


TASK = Task(
    pipeline="text-ranking",
    name="rerank",
    path="/v1/rerank",
    # Cohere's clients append `v2` to their base URL. Others append nothing: their path is shared
    # with another form, see stoker/inference/other_servers/registry.py.
    aliases=("/v2/rerank",),
    summary="Rank documents by relevance to a query",
    request=RerankRequest,
    result=Ranking,
    whole=True,
    # The stages of these pipelines accept pairs too: cross-encoders are text classifiers, and
    # embeddings are compared.
    also=("text-classification", "feature-extraction", "fill-mask"),
    # Less specific than the pattern of text classification, which serves this endpoint as well.
    architectures=("*ForSequenceClass*", *PAGES),
    families=("bert", "roberta"),
    example={
        "query": "Will it rain tomorrow?",
        "documents": ["The train is late.", "Do I need an umbrella tomorrow?"],
        "top_n": 1,
        "return_documents": True,
    },
    example_result={
        "id": "rerank-7d1f2a90c3b84e56a1d20f97",
        "model": "reranker",
        "results": [
            {
                "index": 1,
                "relevance_score": 0.99,
                "document": {"text": "Do I need an umbrella tomorrow?"},
            }
        ],
        "usage": {"prompt_tokens": 28, "total_tokens": 28},
    },
    stages=RerankStages,
    finish=_ranking,
    place=_place,
)
