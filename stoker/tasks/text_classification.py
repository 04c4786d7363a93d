"""Text classification: the labels of a text, such as its sentiment."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from stoker.replica.stages import PipelineStages
from stoker.tasks.base import Task, TaskRequest, TextInputs, TopK, Truncation


class TextClassificationRequest(TaskRequest):
    inputs: TextInputs
    top_k: TopK | None = Field(
        default=None, description="How many labels, best first; default: all."
    )
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = Field(
        default=None,
        description="How scores are made from logits; default: by the model's problem type.",
    )
    truncation: Truncation = False


class Label(TypedDict):
    label: str
    score: float


class TextClassificationStages(PipelineStages):
    pipeline = "TextClassificationPipeline"
    auto_class = "AutoModelForSequenceClassification"

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        # Named or not, `top_k` must reach the pipeline: without it, it answers in an older shape.
        return {"top_k": None} | super().pipeline_parameters(parameters)


TASK = Task(
    pipeline="text-classification",
    path="/v1/classifications/text",
    summary="Classify texts",
    request=TextClassificationRequest,
    result=list[Label],
    architectures=("*ForSequenceClassification",),
    example={"inputs": "The room was clean and the staff were friendly."},
    example_result=[
        {"label": "positive", "score": 0.99},
        {"label": "negative", "score": 0.01},
    ],
    stages=TextClassificationStages,
)
