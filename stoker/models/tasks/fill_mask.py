"""Fill-mask: the most likely tokens for a mask token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.pipelines import TextPipelineStages
from stoker.models.stages.sentence_modules import FolderUnfitError, Sentence
from stoker.models.stages.sparse import SparseStages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import MANY, ONE, TextInputs, TopK, Truncation, one_or_many

MAX_TARGETS = 1000

Target = Annotated[str, Field(min_length=1, max_length=256)]

Targets = Annotated[
    Annotated[Target, Tag(ONE)]
    | Annotated[list[Target], Field(min_length=1, max_length=MAX_TARGETS), Tag(MANY)],
    Discriminator(one_or_many),
]


class FillMaskRequest(TaskRequest):
    inputs: TextInputs
    targets: Targets | None = Field(
        default=None,
        description="Score only these words. If a word is not one token of the model, its first "
        "token is scored, as `token_str` shows.",
    )
    top_k: TopK = 5
    truncation: Truncation = False


class Filling(TypedDict):
    sequence: str
    score: float
    token: int
    token_str: str


class FillMaskStages(SparseStages, TextPipelineStages):
    """Stages of masked language models. They also make sparse vectors, for embeddings and for
    reranked pairs.
    """

    pipeline = "FillMaskPipeline"

    def described(self, folder: Path) -> Sentence:
        try:
            sentence = super().described(folder)
        except FolderUnfitError:
            return Sentence()
        return sentence if sentence.kind == self.vectors else Sentence()

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if parameters.get("counted") or isinstance(item, dict):
            return super().preprocess(item, parameters)
        samples = TextPipelineStages.preprocess(self, item, parameters)
        mask = self.tokenizer.mask_token
        if not (samples[0].features["input_ids"] == self.tokenizer.mask_token_id).any():
            raise InputError(f"The text lacks the model's mask token {mask}.", field="inputs")
        return samples

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        # A pair has two outputs: of the query and of the document.
        if parameters.get("counted") or len(outputs) > 1:
            return super().postprocess(outputs, parameters)
        return TextPipelineStages.postprocess(self, outputs, parameters)

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        options = super().pipeline_parameters(parameters)
        if "targets" in options:
            self._refuse_blank(options["targets"])
        # The pipeline fails if `top_k` exceeds the vocabulary.
        return options | {"top_k": min(options["top_k"], self.config.vocab_size)}

    def _refuse_blank(self, targets: str | list[str]) -> None:
        """Raises `InputError` for a target without a token, which the pipeline would skip."""
        listed = [targets] if isinstance(targets, str) else targets
        vocabulary = self.tokenizer.get_vocab()
        for index, target in enumerate(listed):
            if target in vocabulary or self.tokenizer(target, add_special_tokens=False).input_ids:
                continue
            raise InputError(
                f"The target {target!r} has no token of this model. Use a word.",
                field="targets" if isinstance(targets, str) else f"targets[{index}]",
                of_item=False,
            )


TASK = Task(
    pipeline="fill-mask",
    path="/v1/fill-mask",
    summary="Fill masked tokens",
    request=FillMaskRequest,
    # A text with several masks gets one list per mask.
    result=list[Filling] | list[list[Filling]],
    architectures=("*ForMaskedLM", "*ForPreTraining", *PAGES),
    families=("bert", "distilbert", "electra", "roberta"),
    example={"inputs": "The capital of France is [MASK].", "top_k": 3},
    example_result=[
        {
            "sequence": "the capital of france is paris.",
            "score": 0.996,
            "token": 1228,
            "token_str": "paris",
        }
    ],
    stages=FillMaskStages,
)
