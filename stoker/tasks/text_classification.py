"""Text classification: the labels of a text, such as its sentiment."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from stoker.replica.pipelines import TextPipelineStages
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.inputs import FunctionToApply, Label, TextInputs, TopK, Truncation


class TextClassificationRequest(TaskRequest):
    inputs: TextInputs
    top_k: TopK | None = Field(
        default=None, description="How many labels, best first; default: all."
    )
    function_to_apply: FunctionToApply | None = None
    truncation: Truncation = False


class TextClassificationStages(TextPipelineStages):
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
