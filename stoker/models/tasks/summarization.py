"""Summarization: a shorter text with the same content."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from stoker.models.stages.generating import GenerationOptions
from stoker.models.stages.seq2seq import CleanUp, Seq2SeqStages, TruncationStrategy
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import TextInputs


class SummarizationRequest(GenerationOptions, TaskRequest):
    inputs: TextInputs
    truncation: TruncationStrategy = False
    clean_up_tokenization_spaces: CleanUp = None


class Summary(TypedDict):
    summary_text: str


class SummarizationStages(Seq2SeqStages):
    result_field = "summary_text"

    def prompt(self, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        default_prefix = getattr(self.config, "prefix", None) or ""
        return self.task_prefixes().get("summarization", default_prefix), {}


TASK = Task(
    pipeline="summarization",
    path="/v1/summarizations",
    summary="Summarize texts",
    request=SummarizationRequest,
    # A list with one entry, as the transformers pipeline answered and its clients expect.
    result=list[Summary],
    # Architectures that serve translation and summarization. The full name marks the usual purpose
    # of an architecture, as it is the more specific pattern.
    architectures=(
        "BartForConditionalGeneration",
        "BigBirdPegasusForConditionalGeneration",
        "EncoderDecoderModel",
        "LEDForConditionalGeneration",
        "LongT5ForConditionalGeneration",
        "MBartForCond*",
        "MT5ForConditionalGeneration",
        "PegasusForConditionalGeneration",
        "PegasusXForConditionalGeneration",
        "ProphetNetForConditionalGeneration",
        "SwitchTransformersForConditionalGeneration",
        "T5ForConditionalGeneration",
        "UMT5ForConditionalGeneration",
    ),
    families=("t5", "bart"),
    example={"inputs": "Nobody was hurt. On Monday the zoo of Berlin opened a new bridge."},
    example_result=[{"summary_text": "Zoo of Berlin opens new bridge"}],
    stages=SummarizationStages,
)
