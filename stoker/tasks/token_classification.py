"""Token classification: which tokens name a person, a place, …"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from stoker.stages.base import Sample
from stoker.stages.pipelines import TextPipelineStages
from stoker.tasks.architectures import PAGES
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.inputs import TextInputs, Truncation


class TokenClassificationRequest(TaskRequest):
    inputs: TextInputs
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = Field(
        default="none",
        description="How tokens are grouped into entities; `none` returns the raw tokens.",
    )
    ignore_labels: (
        Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=1000)] | None
    ) = Field(default=None, description="Labels whose tokens are left out; default: `O`.")
    truncation: Truncation = False


class Token(TypedDict):
    """`entity` and `index` of raw tokens; `entity_group` of grouped ones.

    `start` and `end` are null where the model's tokenizer does not tell them.
    """

    word: str
    score: float
    start: int | None
    end: int | None
    entity: NotRequired[str]
    index: NotRequired[int]
    entity_group: NotRequired[str]


class TokenClassificationStages(TextPipelineStages):
    pipeline = "TokenClassificationPipeline"
    auto_class = "AutoModelForTokenClassification"
    per_token = ("logits",)
    tokenizer_options = {"return_special_tokens_mask": True, "return_offsets_mapping": True}

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        samples = super().preprocess(item, parameters)
        for sample in samples:
            # Not every tokenizer tells which characters its tokens stand for.
            sample.extras.setdefault("offset_mapping", None)
            sample.extras |= {"sentence": item, "word_ids": None, "word_to_chars_map": None}
        return samples


TASK = Task(
    pipeline="token-classification",
    path="/v1/classifications/token",
    summary="Classify tokens",
    request=TokenClassificationRequest,
    result=list[Token],
    architectures=("*ForTokenClassification", *PAGES),
    families=("bert", "distilbert", "electra", "roberta"),
    example={
        "inputs": "Maria Schmidt works at Siemens in Berlin.",
        "aggregation_strategy": "simple",
    },
    example_result=[
        {"entity_group": "PER", "score": 0.9997, "word": "Maria Schmidt", "start": 0, "end": 13},
        {"entity_group": "ORG", "score": 0.9998, "word": "Siemens", "start": 23, "end": 30},
        {"entity_group": "LOC", "score": 0.9994, "word": "Berlin", "start": 34, "end": 40},
    ],
    stages=TokenClassificationStages,
)
