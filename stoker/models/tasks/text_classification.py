"""Text classification: the labels of a text, such as its sentiment."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from typing_extensions import TypedDict

from stoker.models.stages.base import Sample
from stoker.models.stages.pairs import Part, RelevanceStages
from stoker.models.stages.pipelines import TextPipelineStages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import (
    MANY,
    ONE,
    SEVERAL,
    FunctionToApply,
    Label,
    TopK,
    Truncation,
    one_or_many,
)

if TYPE_CHECKING:
    import numpy


class TextPair(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # pyright: ignore[reportGeneralTypeIssues]

    text: str
    text_pair: NotRequired[str]


def _kind(item: Any) -> str:
    return "<pair>" if isinstance(item, dict) else "<text>"


def _paired(item: Any) -> Any:
    """Returns a list of two texts as a pair, which is the format of Text Embeddings Inference."""
    if isinstance(item, list) and len(cast("list[Any]", item)) == 2:
        first, second = cast("list[Any]", item)
        return {"text": first, "text_pair": second}
    return cast("Any", item)


Text = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextPair, Tag("<pair>")], Discriminator(_kind)
]
ListedText = Annotated[
    Text, BeforeValidator(_paired, json_schema_input_type=str | TextPair | tuple[str, str])
]
TextInputs = Annotated[
    Annotated[Text, Tag(ONE)] | Annotated[list[ListedText], SEVERAL, Tag(MANY)],
    Discriminator(one_or_many),
    Field(
        description="A text, a pair of texts as an object with `text` and `text_pair`, or a "
        "list of these: one result each, in order. Within a list, a list of two "
        "texts is a pair, too."
    ),
]


class TextClassificationRequest(TaskRequest):
    inputs: TextInputs
    top_k: TopK | None = Field(
        default=None, description="Number of labels, best first. Default: all."
    )
    function_to_apply: FunctionToApply | None = None
    truncation: Truncation = False


class TextClassificationStages(RelevanceStages, TextPipelineStages):
    """Stages of text classification.

    Items are texts, pairs of texts or, from the rerank endpoint, objects with `query` and
    `document`.
    """

    pipeline = "TextClassificationPipeline"
    auto_class = "AutoModelForSequenceClassification"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if not isinstance(item, dict):
            return super().preprocess(item, parameters)
        fields = cast("dict[str, Any]", item)
        if "text_pair" in fields:
            cut: Part | None = "longest" if parameters.get("truncation") else None
            texts = fields["text"], fields["text_pair"]
            return [self.pair(*texts, cut=cut, cuttable="text", field="inputs")]
        if "text" in fields:
            return super().preprocess(fields["text"], parameters)
        sample = self.relevance_sample(fields, parameters)
        sample.extras["is_pair"] = True
        return [sample]

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._labels: Mapping[int, str] = model.config.id2label
        self._default_function = _default_function(model.config)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """Returns what the pipeline object returns, in a fifth of its time."""
        if "is_pair" in outputs[0]:
            return self.relevance(outputs[0], parameters)
        function: str = parameters.get("function_to_apply") or self._default_function
        scores = _applied(function, outputs[0]["logits"][0].float().numpy()).tolist()
        labels = [
            {"label": self._labels[number], "score": score} for number, score in enumerate(scores)
        ]
        labels.sort(key=lambda label: label["score"], reverse=True)
        return labels[: parameters.get("top_k")]


def _default_function(config: Any) -> str:
    """Returns the function that makes scores from logits, as the pipeline object chooses it."""
    if config.problem_type == "regression":
        return "none"
    if config.problem_type == "multi_label_classification" or config.num_labels == 1:
        return "sigmoid"
    return "softmax" if config.num_labels > 1 else "none"


def _applied(function: str, logits: "numpy.ndarray[Any, Any]") -> "numpy.ndarray[Any, Any]":
    from transformers.pipelines import text_classification

    if function == "none":
        return logits
    functions: Any = text_classification
    return getattr(functions, function)(logits)


TASK = Task(
    pipeline="text-classification",
    path="/v1/classifications/text",
    summary="Classify texts",
    request=TextClassificationRequest,
    result=list[Label],
    architectures=("*ForSequenceClassification", *PAGES),
    families=("bert", "distilbert", "electra", "roberta"),
    example={"inputs": "The room was clean and the staff were friendly."},
    example_result=[
        {"label": "positive", "score": 0.99},
        {"label": "negative", "score": 0.01},
    ],
    stages=TextClassificationStages,
)
