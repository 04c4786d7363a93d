"""Classification and ranking in the formats of Text Embeddings Inference."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, cast

from pydantic import BaseModel, Field, PlainValidator, RootModel
from pydantic_core import PydanticCustomError

from stoker.models.stages.pairs import Relevance
from stoker.models.tasks.base import Task
from stoker.models.tasks.inputs import MAX_ITEMS
from stoker.models.tasks.other_servers.fields import TruncatingRequest
from stoker.models.tasks.rerank import MAX_DOCUMENTS
from stoker.models.tasks.rerank import TASK as RERANK_TASK
from stoker.models.tasks.text_classification import TextPair

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

RawScores = Annotated[
    bool, Field(description="Return the model's logits instead of scores from 0 to 1.")
]


class PredictInputs(NamedTuple):
    """Texts and pairs of texts to classify."""

    items: list[str | TextPair]
    is_batch: bool


def _inputs(value: Any) -> Any:
    """Returns a text, a pair of texts, or a batch of them.

    A list of one or two texts is a text or a pair, and not a batch.
    """
    if isinstance(value, str):
        return PredictInputs(items=[_item([value])], is_batch=False)
    if not isinstance(value, list) or not value:
        raise _no_input()
    values = cast("list[Any]", value)
    if isinstance(values[0], str):
        return PredictInputs(items=[_item(values)], is_batch=False)
    if len(values) > MAX_ITEMS:
        raise PydanticCustomError(
            "value_error", "must have at most {most} items", {"most": MAX_ITEMS}
        )
    return PredictInputs(items=[_item(item) for item in values], is_batch=True)


def _item(value: Any) -> str | TextPair:
    texts = cast("list[Any]", value) if isinstance(value, list) else []
    if not all(isinstance(text, str) and text for text in texts) or len(texts) not in (1, 2):
        raise _no_input()
    return texts[0] if len(texts) == 1 else TextPair(text=texts[0], text_pair=texts[1])


def _no_input() -> PydanticCustomError:
    return PydanticCustomError(
        "value_error",
        "must be a text, a pair of texts as a list of two, or a batch of these as lists, such as "
        '[["a text"], ["one", "other"]]. Texts must not be empty',
    )


class PredictRequest(TruncatingRequest):
    inputs: Annotated[
        Any,
        PlainValidator(_inputs, json_schema_input_type=str | list[str] | list[list[str]]),
        Field(
            description="A text, a pair of texts, or a batch: a list of lists of one or two texts."
        ),
    ]
    raw_scores: RawScores = False

    def items(self) -> tuple[list[Any], bool]:
        inputs: PredictInputs = self.inputs
        return list(inputs.items), not inputs.is_batch

    def texts(self) -> Iterator[tuple[str, str]]:
        items, is_single = self.items()
        for index, item in enumerate(items):
            place = "inputs" if is_single else f"inputs[{index}]"
            for text in [item] if isinstance(item, str) else item.values():
                yield place, str(text)

    def parameters(self) -> dict[str, Any]:
        function = {"function_to_apply": "none"} if self.raw_scores else {}
        return super().parameters() | function


class RankTextsRequest(TruncatingRequest):
    query: str = Field(min_length=1, description="Query that the texts are ranked by.")
    # A method has the field's name.
    ranked: list[Annotated[str, Field(min_length=1)]] = Field(
        alias="texts", min_length=1, max_length=MAX_DOCUMENTS, description="The texts to rank."
    )
    raw_scores: RawScores = False
    return_text: bool = Field(default=False, description="Return each text with its score.")

    input_fields: ClassVar[tuple[str, ...]] = ("texts", "query")

    def items(self) -> tuple[list[Any], bool]:
        return [{"query": self.query, "document": text} for text in self.ranked], False

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "query", self.query
        for index, text in enumerate(self.ranked):
            yield f"texts[{index}]", text

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | {"scores": "raw" if self.raw_scores else "sigmoid"}

    def finishing(self) -> dict[str, Any]:
        return {"return_text": self.return_text}


class Prediction(BaseModel):
    score: float
    label: str


class Predictions(RootModel[list[Prediction] | list[list[Prediction]]]):
    """The labels of a text, best first, or a list of them for each item of a batch."""


class RankedText(BaseModel):
    index: int = Field(description="Position of the text in the request.")
    score: float
    text: str | None = Field(default=None, description="With `return_text`.")


class RankedTexts(RootModel[list[RankedText]]):
    """The texts, best first."""


def _ranked(work: "Work", texts: Sequence[Relevance]) -> list[dict[str, Any]]:
    """Returns the answer. Texts of equal relevance keep their order."""
    ranks = [
        {"index": index, "score": text.score}
        | ({"text": work.items[index]["document"]} if work.finishing["return_text"] else {})
        for index, text in enumerate(texts)
    ]
    orders = [(text.score, text.order) for text in texts]
    best_first = sorted(range(len(ranks)), key=orders.__getitem__, reverse=True)
    return [ranks[index] for index in best_first]


def _text(field: str, index: int) -> str:
    return f"{'texts' if field == 'documents' else field}[{index}]"


PREDICT = Task(
    pipeline="text-classification",
    name="predict",
    path="/predict",
    summary="Classify texts or pairs of texts",
    request=PredictRequest,
    result=Predictions,
    example={"inputs": "The room was clean and the staff were friendly."},
)
RANK_TEXTS = Task(
    pipeline="text-ranking",
    also=RERANK_TASK.also,
    name="rank_texts",
    path="/rerank",
    summary="Rank texts by relevance to a query",
    request=RankTextsRequest,
    result=RankedTexts,
    example={
        "query": "Will it rain tomorrow?",
        "texts": ["The train is late.", "Do I need an umbrella tomorrow?"],
    },
    finish=_ranked,
    place=_text,
)
