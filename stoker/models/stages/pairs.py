"""Stages that read two texts together."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.cross_encoder import CrossEncoder, described, score
from stoker.models.stages.pooling import read_json
from stoker.models.stages.sentence_modules import FolderUnfitError
from stoker.models.stages.text import TextStages

if TYPE_CHECKING:
    import torch

Part = Literal["first", "second", "longest"]
_MAX_LABELS = 2


class PairStages(TextStages):
    """Stages with a sample of two texts and the tokenizer's separators between them."""

    def pair(
        self,
        first: str,
        second: str,
        *,
        cut: Part | None,
        cuttable: str,
        field: str,
        most: int | None = None,
    ) -> Sample:
        """Returns a sample of two texts as one sequence of the model.

        Args:
            cut: Part that is shortened if both texts together exceed the model's limit. `longest`
                always removes a token of the longer text. None rejects the texts.
            cuttable: The client's name of the part that can be cut.
            field: Request field of the item that an error names.
            most: Maximum number of tokens of the second part. It is always cut to this length.

        Raises:
            InputError: The texts are too long, even without the part that may be cut.
        """
        limit = self.max_tokens()
        encoded = self.tokenizer(first, second, return_tensors="pt")
        whole = length = encoded["input_ids"].shape[1]
        if most is not None and (beyond := len(self._tokens(second)) - most) > 0:
            encoded = self._cut(first, second, "second", length := whole - beyond)
        if length > limit:
            if cut is None:
                raise InputError(
                    f"With what it is read with, the {cuttable} has {length} tokens; this model "
                    f"takes at most {limit}. Shorten it, or send 'truncation': true to cut it.",
                    field=field,
                )
            cut_tokens = 0 if cut == "second" else len(self._tokens(first))
            cut_tokens += 0 if cut == "first" else len(self._tokens(second))
            if cut_tokens <= whole - limit:
                raise InputError(
                    f"The model takes at most {limit} tokens, and the text next to the "
                    f"{cuttable} leaves none for it. Shorten that text.",
                    field=field,
                )
            encoded = self._cut(first, second, cut, limit)
        return Sample({name: encoded[name] for name in self.tokenizer.model_input_names})

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _cut(self, first: str, second: str, part: Part, length: int) -> Any:
        strategy = "longest_first" if part == "longest" else f"only_{part}"
        return self.tokenizer(
            first, second, return_tensors="pt", truncation=strategy, max_length=length
        )


class Relevance(NamedTuple):
    """Relevance of a document to a query."""

    score: float
    order: float
    """Order of documents with equal scores, such as scores that a sigmoid cannot distinguish."""
    tokens: int
    """Number of tokens that the model read."""


class RelevanceStages(PairStages):
    """Stages of a cross-encoder, which scores the relevance of a document to a query.

    An item is an object with `query` and `document`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._unfit: FolderUnfitError | None = None
        self._settings = CrossEncoder()
        try:
            self._settings = described(lambda path: read_json(folder / path))
        except FolderUnfitError as error:
            # A text classifier still serves its other endpoints.
            self._unfit = error

    def relevance_sample(self, item: Mapping[str, Any], parameters: Mapping[str, Any]) -> Sample:
        self._refuse_unfit()
        cut: Part | None = "second" if parameters.get("truncation") else None
        return self.pair(
            self._settings.prompt + item["query"],
            item["document"],
            cut=cut,
            cuttable="document",
            field="documents",
            most=parameters.get("max_tokens_per_doc"),
        )

    def relevance(self, output: Mapping[str, Any], parameters: Mapping[str, Any]) -> Relevance:
        """Returns the relevance of a document from the model's logits.

        A single logit becomes a score by the model's activation, by default the sigmoid. With two
        labels, the score is the softmax of the last one, which is positive by the convention of
        text classification. The parameter `scores` replaces the activation: `sigmoid`, or `raw` for
        the logit itself. With two labels, this is their difference.
        """
        logits = output["logits"][0].double()
        tokens: int = output["input_ids"].shape[1]
        is_single, scores = logits.shape[0] == 1, parameters.get("scores")
        logit: torch.Tensor = logits[0] if is_single else logits[-1] - logits[0]
        order = logit.item()
        if scores == "raw":
            return Relevance(order, order, tokens)
        if is_single and scores is None:
            return Relevance(score(self._settings.activation, logit), order, tokens)
        return Relevance(logit.sigmoid().item(), order, tokens)

    def _refuse_unfit(self) -> None:
        if self._unfit:
            raise InputError(
                f"This model cannot rank documents: {self._unfit}", field="model", of_item=False
            )
        if (labels := getattr(self.config, "num_labels", 1)) > _MAX_LABELS:
            raise InputError(
                f"This model returns {labels} labels, and none of them states how relevant a "
                "document is. A reranker has one label, or two labels with the positive one "
                "last. Use /v1/classifications/text for the labels of a pair of texts.",
                field="model",
                of_item=False,
            )
