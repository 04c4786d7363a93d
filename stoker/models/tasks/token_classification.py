"""Token classification: which tokens name a person, a place, …"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.pipelines import TextPipelineStages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import TextInputs, Truncation

_PLACES = ("special_tokens_mask", "offset_mapping")
"""Tokenizer outputs that postprocessing needs."""


class TokenClassificationRequest(TaskRequest):
    inputs: TextInputs
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = Field(
        default="none",
        description="Strategy that groups tokens into entities. `none` returns the raw tokens.",
    )
    ignore_labels: (
        Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=1000)] | None
    ) = Field(default=None, description="Labels of tokens to leave out. Default: `O`.")
    stride: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Read a text that is too long for the model in several windows, which share "
        "this number of tokens. Requires an `aggregation_strategy`.",
    )
    truncation: Truncation = False


class Token(TypedDict):
    """A token or a group of tokens. Raw tokens have `entity` and `index`; groups have
    `entity_group`.

    `start` and `end` are null if the model's tokenizer does not return them.
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
        stride: int | None = parameters.get("stride")
        if stride is None:
            samples = super().preprocess(item, parameters)
        else:
            self._check_stride(stride, parameters["aggregation_strategy"])
            samples = self._windows(item, stride)
        for sample in samples:
            # Some tokenizers do not return the characters of their tokens.
            sample.extras.setdefault("offset_mapping", None)
            sample.extras |= {"sentence": item, "word_ids": None, "word_to_chars_map": None}
        return samples

    def attach(self, model: Any) -> None:
        super().attach(model)
        # The pipeline object reads each token's label, which takes longer from the configuration.
        labels = SimpleNamespace(id2label=model.config.id2label)
        self._pipe.model = SimpleNamespace(config=labels)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        # The pipeline object reads each token's number and place, which takes longer from tensors.
        entities = super().postprocess([_with_lists(output) for output in outputs], parameters)
        return [{**entity, "score": float(entity["score"])} for entity in entities]

    def _check_stride(self, stride: int, strategy: str) -> None:
        room = self.max_tokens() - self.tokenizer.num_special_tokens_to_add()
        if strategy == "none":
            reason = "needs an 'aggregation_strategy' other than 'none': windows share tokens."
        elif not self.tokenizer.is_fast:
            reason = "needs token positions in the text, which this model's tokenizer lacks."
        elif stride >= room:
            reason = f"must be less than {room}, the number of text tokens in a window."
        else:
            return
        raise InputError(f"'stride' {reason}", field="stride", of_item=False)

    def _windows(self, text: str, stride: int) -> list[Sample]:
        import torch

        encoded = self.tokenizer(
            text,
            truncation=True,
            max_length=self.max_tokens(),
            stride=stride,
            return_overflowing_tokens=True,
            **self.tokenizer_options,
        )
        names = (*self.tokenizer.model_input_names, *_PLACES)
        windows = [
            {name: torch.tensor(encoded[name][number])[None] for name in names if name in encoded}
            for number in range(len(encoded["input_ids"]))
        ]
        return [
            Sample(
                {name: value for name, value in window.items() if name not in _PLACES},
                {name: value for name, value in window.items() if name in _PLACES},
            )
            for window in windows
        ]


def _with_lists(output: Mapping[str, Any]) -> Mapping[str, Any]:
    places = output["offset_mapping"]
    return {
        **output,
        "input_ids": output["input_ids"].tolist(),
        "offset_mapping": None if places is None else places.tolist(),
    }


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
