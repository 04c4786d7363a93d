"""Text classification: the labels of a text, such as its sentiment."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import Field

from stoker.stages.base import Sample
from stoker.stages.pairs import RelevanceStages
from stoker.stages.pipelines import TextPipelineStages
from stoker.tasks.architectures import PAGES
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.inputs import FunctionToApply, Label, TextInputs, TopK, Truncation


class TextClassificationRequest(TaskRequest):
    inputs: TextInputs
    top_k: TopK | None = Field(
        default=None, description="How many labels, best first; default: all."
    )
    function_to_apply: FunctionToApply | None = None
    truncation: Truncation = False


class TextClassificationStages(RelevanceStages, TextPipelineStages):
    """Items of the rerank endpoint are objects with `query` and `document`."""

    pipeline = "TextClassificationPipeline"
    auto_class = "AutoModelForSequenceClassification"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if not isinstance(item, dict):
            return super().preprocess(item, parameters)
        sample = self.relevance_sample(cast("dict[str, Any]", item), parameters)
        sample.extras["is_pair"] = True
        return [sample]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        if "is_pair" in outputs[0]:
            return self.relevance(outputs[0])
        return super().postprocess(outputs, parameters)

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        # Named or not, `top_k` must reach the pipeline: without it, it answers in an older shape.
        return {"top_k": None} | super().pipeline_parameters(parameters)


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
