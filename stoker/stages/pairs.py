"""Stages that read two texts at once."""

from collections.abc import Mapping
from typing import Any, Literal

from stoker.stages.base import InputError, Sample
from stoker.stages.text import TextStages

Part = Literal["first", "second"]


class PairStages(TextStages):
    """Two texts are one sample, with what the tokenizer puts between them."""

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
        """Two texts as one sequence of the model.

        Args:
            cut: the part that is shortened where both together are longer than the model takes;
                None: refuse them.
            cuttable: what the client calls the part that can be cut.
            field: the request's field that an error names, of an item.
            most: the second part is cut to so many tokens in any case.

        Raises:
            InputError: they are too long, also without the part that may be cut.
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
            if len(self._tokens(first if cut == "first" else second)) <= whole - limit:
                raise InputError(
                    f"The model takes at most {limit} tokens, and what the {cuttable} is read "
                    f"with leaves none for it: shorten that.",
                    field=field,
                )
            encoded = self._cut(first, second, cut, limit)
        return Sample({name: encoded[name] for name in self.tokenizer.model_input_names})

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _cut(self, first: str, second: str, part: Part, length: int) -> Any:
        return self.tokenizer(
            first, second, return_tensors="pt", truncation=f"only_{part}", max_length=length
        )


class RelevanceStages(PairStages):
    """A cross-encoder: how relevant is a document to a query?

    An item is an object with `query` and `document`.
    """

    def relevance_sample(self, item: Mapping[str, Any], parameters: Mapping[str, Any]) -> Sample:
        cut: Part | None = "second" if parameters.get("truncation") else None
        return self.pair(
            item["query"],
            item["document"],
            cut=cut,
            cuttable="document",
            field="documents",
            most=parameters.get("max_tokens_per_doc"),
        )

    def relevance(self, output: Mapping[str, Any]) -> tuple[float, int]:
        """From 0 to 1: the sigmoid of a single logit; of several labels, the last one's softmax.

        The last of two labels is the positive one by the convention of text classification.
        Beside it, the number of tokens that were read.
        """
        logits = output["logits"][0].float()
        tokens: int = output["input_ids"].shape[1]
        if logits.shape[0] == 1:
            return logits.sigmoid()[0].item(), tokens
        return logits.softmax(-1)[-1].item(), tokens
