"""Zero-shot classification: the labels of the request that describe a text.

A model of natural language inference judges each label: does the text entail the template's
sentence with the label in it?
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import TypedDict

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.pairs import PairStages, Part
from stoker.models.stages.pipelines import TextPipelineStages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import TextInputs, Truncation

MAX_LABELS = 1000
PLACE = "{}"


def _separated(value: Any) -> Any:
    """Splits a comma-separated string into labels, which the pipeline accepts too."""
    if isinstance(value, str):
        return [label for part in value.split(",") if (label := part.strip())]
    return value


def _placed(template: str) -> str:
    if PLACE not in template:
        raise ValueError("must contain {}, the place of the label")
    return template


CandidateLabels = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]],
    Field(min_length=1, max_length=MAX_LABELS),
    BeforeValidator(_separated, json_schema_input_type=list[str] | str),
    Field(
        description=(
            f"Labels to choose from, 1 to {MAX_LABELS}: a list, or one comma-separated text."
        )
    ),
]


class ZeroShotClassificationRequest(TaskRequest):
    inputs: TextInputs
    candidate_labels: CandidateLabels
    hypothesis_template: Annotated[str, AfterValidator(_placed)] = Field(
        default="This example is {}.",
        max_length=1024,
        description="Sentence in which each label replaces `{}`.",
    )
    multi_label: bool = Field(
        default=False,
        description="Score each label separately, so that several may apply. Otherwise the "
        "scores add up to 1.",
    )
    truncation: Truncation = False


class Classification(TypedDict):
    """Labels, the best first, and their scores in the same order."""

    sequence: str
    labels: list[str]
    scores: list[float]


class ZeroShotClassificationStages(PairStages, TextPipelineStages):
    pipeline = "ZeroShotClassificationPipeline"
    auto_class = "AutoModelForSequenceClassification"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if not item.strip():
            raise InputError("The text must not be empty.")
        labels = cast("list[str]", parameters["candidate_labels"])
        return [self._sample(item, label, parameters) for label in labels]

    def _sample(self, text: str, label: str, parameters: Mapping[str, Any]) -> Sample:
        # The template is the client's text, not a format string: only the placeholder is replaced.
        hypothesis = parameters["hypothesis_template"].replace(PLACE, label)
        cut: Part | None = "first" if parameters["truncation"] else None
        sample = self.pair(text, hypothesis, cut=cut, cuttable="text", field="inputs")
        sample.extras |= {"candidate_label": label, "sequence": text}
        return sample

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"multi_label": parameters["multi_label"]}


TASK = Task(
    pipeline="zero-shot-classification",
    path="/v1/classifications/zero-shot/text",
    summary="Classify texts by your own labels",
    request=ZeroShotClassificationRequest,
    result=Classification,
    # Less specific than the pattern of text classification, the main purpose of most such models.
    architectures=("*ForSequenceClass*", *PAGES),
    families=("bert", "bart"),
    example={
        "inputs": "The striker scored a goal.",
        "candidate_labels": ["sports", "cooking"],
    },
    example_result={
        "sequence": "The striker scored a goal.",
        "labels": ["sports", "cooking"],
        "scores": [0.95, 0.05],
    },
    stages=ZeroShotClassificationStages,
)
