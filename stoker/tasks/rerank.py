"""Reranking: documents by their relevance to a query, in the shape that Cohere and Jina use."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired, cast

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from stoker.replica.pairs import RelevanceStages
from stoker.replica.stages import Sample
from stoker.tasks.base import Task, TaskRequest

if TYPE_CHECKING:
    from stoker.replica.protocol import Work

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


class RerankRequest(TaskRequest):
    query: str = Field(min_length=1, description="What the documents are to be relevant to.")
    documents: list[Document] = Field(
        min_length=1,
        max_length=MAX_DOCUMENTS,
        description="Texts, or objects with the text as `text`.",
    )
    top_n: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DOCUMENTS,
        description="How many of the documents to return, best first; default: all.",
    )
    return_documents: bool = Field(
        default=False, description="Return each document's text with its score."
    )
    truncation: bool = Field(
        default=False,
        description="Cut a document that is longer than the model takes with the query. "
        "Without it such a document is refused with the numbers.",
    )

    input_fields: ClassVar[tuple[str, ...]] = ("documents", "query")

    def items(self) -> tuple[list[Any], bool]:
        return [{"query": self.query, "document": document} for document in self.documents], False

    def parameters(self) -> dict[str, Any]:
        return {"truncation": self.truncation}

    def finishing(self) -> dict[str, Any]:
        return {"top_n": self.top_n, "return_documents": self.return_documents}


class Ranked(TypedDict):
    """`index`: the document's place in the request; `relevance_score`: more is more relevant."""

    index: int
    relevance_score: float
    document: NotRequired[TextDocument]


class Ranking(TypedDict):
    results: list[Ranked]


class RerankStages(RelevanceStages):
    auto_class = "AutoModelForSequenceClassification"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return [self.relevance_sample(item, parameters)]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> float:
        return self.relevance(outputs[0])


def _ranking(work: "Work", scores: Sequence[float]) -> Ranking:
    # Sorting keeps the order of equals.
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: work.finishing["top_n"]]
    results: list[Ranked] = [{"index": index, "relevance_score": scores[index]} for index in best]
    if work.finishing["return_documents"]:
        for one in results:
            one["document"] = {"text": work.items[one["index"]]["document"]}
    return {"results": results}


def _place(field: str, index: int) -> str:
    return f"documents[{index}]"


TASK = Task(
    pipeline="text-ranking",
    name="rerank",
    path="/v1/rerank",
    summary="Rank documents by relevance to a query",
    request=RerankRequest,
    result=Ranking,
    whole=True,
    # Their stages take pairs too: a cross-encoder is a text classifier, and embeddings compare.
    also=("text-classification", "feature-extraction"),
    # Less specific than that of text classification, which serves this endpoint as well.
    architectures=("*ForSequenceClass*",),
    families=("bert", "roberta"),
    example={
        "query": "How tall is the tower?",
        "documents": ["It is 324 metres tall.", "It stands in Paris."],
        "top_n": 1,
        "return_documents": True,
    },
    example_result={
        "results": [
            {
                "index": 0,
                "relevance_score": 0.97,
                "document": {"text": "It is 324 metres tall."},
            }
        ]
    },
    stages=RerankStages,
    finish=_ranking,
    place=_place,
)
