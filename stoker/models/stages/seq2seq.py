"""Stages of encoder-decoder models that read a text and write another."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.generating import GenerateStages
from stoker.models.stages.text import TextStages

_Strategy = Literal["do_not_truncate", "longest_first", "only_first", "only_second"]


def _truncates(value: bool | _Strategy) -> bool:
    return value if isinstance(value, bool) else value != "do_not_truncate"


TruncationStrategy = Annotated[
    bool | _Strategy,
    AfterValidator(_truncates),
    Field(
        description="Truncate inputs that are too long for the model. Otherwise they are "
        "rejected, with the numbers. `do_not_truncate` means false, any other "
        "strategy true."
    ),
]
CleanUp = Annotated[
    bool | None,
    Field(description="Remove spaces before punctuation. Default: the tokenizer's own setting."),
]

_PROBE_NEW_TOKENS = 4


class Seq2SeqStages(GenerateStages, TextStages):
    """Stages that return `[{…_text}]` per input, as the pipelines up to transformers 4 did."""

    auto_class = "AutoModelForSeq2SeqLM"
    result_field: ClassVar[str]

    def attach(self, model: Any) -> None:
        super().attach(model)
        parameters = inspect.signature(model.forward).parameters
        self._features = [name for name in self.tokenizer.model_input_names if name in parameters]

    def prompt(self, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Returns the prefix of each text and arguments of `generate`. Raises `InputError`."""
        return "", {}

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if not item.strip():
            raise InputError("The text must not be empty.")
        before, forced = self.prompt(parameters)
        call = self.call_of(parameters, **forced)
        return [
            replace(self._kept(sample), call=call, alone=self.alone(parameters))
            for sample in super().preprocess(before + item, parameters)
        ]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        clean = parameters.get("clean_up_tokenization_spaces")
        return [
            {self.result_field: self.text(output, clean_up_tokenization_spaces=clean)}
            for output in outputs
        ]

    def probe(self, length: int, number: int = 0) -> Sample:
        call = self.call_of({"max_new_tokens": _PROBE_NEW_TOKENS})
        return replace(self._kept(super().probe(length, number)), call=call)

    def _kept(self, sample: Sample) -> Sample:
        """Returns the sample without features that this model does not accept."""
        return replace(sample, features={name: sample.features[name] for name in self._features})

    def task_prefixes(self) -> dict[str, str]:
        """Returns the training prefixes of a T5 by the name of the task, from its config."""
        tasks: Mapping[str, Any] = getattr(self.config, "task_specific_params", None) or {}
        return {name: str(settings.get("prefix") or "") for name, settings in tasks.items()}
