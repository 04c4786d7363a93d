"""Stages of ColBERT-like models, which make a vector per token: see
`stoker.models.stages.late_interaction`.

A query is compared to a document token by token (MaxSim; Khattab and Zaharia, "ColBERT", 2020,
https://arxiv.org/abs/2004.12832). The model reads queries and documents differently.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.embedding import EmbeddingStages, cuts_prompt, wrong_dimensions
from stoker.models.stages.late_interaction import DOCUMENT, QUERY, Expansion, Interaction
from stoker.models.stages.pooling import SentenceHead
from stoker.models.stages.sentence_modules import FolderUnfitError
from stoker.models.stages.similarity import MAX_SIM, MEAN_MAX_SIM, TOKENS, measure

if TYPE_CHECKING:
    import torch


class MultiVectorStages(EmbeddingStages):
    """Stages of models with a vector per token. A text is a document, unless the request names the
    prompt `query`.
    """

    auto_class = "AutoModel"
    per_token = ("last_hidden_state",)
    vectors = "multi"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import torch

        self._head = SentenceHead.of(folder)
        self.about = self._head.about
        if self.about.interaction is None:
            raise FolderUnfitError(
                "config.json", "describes a model that makes one vector per text."
            )
        self._interaction: Interaction = self.about.interaction
        if self._interaction.has_markers:
            self._know_markers()
        known: dict[str, int] = self.tokenizer.get_vocab()
        ids = [known[word] for word in self._interaction.skipped if word in known]
        self._skipped = torch.tensor(ids, dtype=torch.long)
        expansion = self._interaction.expansion
        self._expanding = self._expansion_token(expansion)
        self.hides_tokens = expansion is not None and not expansion.attend

    def _know_markers(self) -> None:
        """Registers prompts that are words of the tokenizer's vocabulary as special tokens.

        Otherwise the tokenizer would split "[unused0]" at its brackets and write "[Q] " in lower
        case.
        """
        from tokenizers import AddedToken

        known: dict[str, int] = self.tokenizer.get_vocab()
        markers: list[AddedToken] = []
        for prompt in self._interaction.prompts.values():
            words = (prompt, *prompt.split(None, 1)[:1]) if prompt.strip() else ()
            word = next((candidate for candidate in words if candidate in known), None)
            if word and self.tokenizer.tokenize(word) != [word]:
                markers.append(AddedToken(word, normalized=False, special=True))
        if markers:
            self.tokenizer.add_special_tokens({"additional_special_tokens": markers})

    def _expansion_token(self, expansion: Expansion | None) -> int:
        if expansion is None:
            return 0
        word = expansion.token or self.tokenizer.mask_token
        token = None if word is None else self.tokenizer.get_vocab().get(word)
        if token is None:
            raise FolderUnfitError(
                "config_sentence_transformers.json",
                f"expands queries by {word}, which is not a token of the model",
            )
        return token

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        samples = super().preprocess(item, parameters)
        if isinstance(item, dict) and "tokens" in item:
            return [self._marked(sample, self._role(parameters)) for sample in samples]
        return samples

    def embedded_text(
        self,
        text: str,
        prompt: str,
        parameters: Mapping[str, Any],
        *,
        field: str,
        of_item: bool = True,
        most: int | None = None,
    ) -> Sample:
        if parameters.get("truncation_side") == "left":
            raise cuts_prompt()
        is_pair = field in (QUERY, "documents")
        role = (QUERY if field == QUERY else DOCUMENT) if is_pair else self._role(parameters)
        expansion = self._interaction.expansion if role == QUERY else None
        limit = self._interaction.lengths.get(role)
        if expansion and expansion.is_limit:
            limit = expansion.length
        try:
            sample = self.text_sample(
                prompt + self.cased(text),
                truncation=bool(parameters.get("truncation")),
                most=most,
                field=field,
                limit=limit,
            )
        except InputError as error:
            error.field, error.of_item = field, of_item
            raise
        return self._marked(sample, role)

    def prompt(self, parameters: Mapping[str, Any]) -> str:
        if parameters.get("prompt_name") is None:
            return self.about.prompts[DOCUMENT]
        return super().prompt(parameters)

    def pair_prompts(self) -> tuple[str, str]:
        return self.about.prompts[QUERY], self.about.prompts[DOCUMENT]

    @staticmethod
    def _role(parameters: Mapping[str, Any]) -> str:
        return QUERY if parameters.get("prompt_name") == QUERY else DOCUMENT

    def _marked(self, sample: Sample, role: str) -> Sample:
        """Returns the sample with a query's expansion tokens and a mask of the tokens with vectors
        that count.
        """
        import torch

        ids, mask = sample.features["input_ids"], sample.features["attention_mask"]
        counted = mask[0].bool()
        if role in self._interaction.skipped_in:
            counted = counted & ~torch.isin(ids[0], self._skipped)
        read = ids.shape[1]
        expansion = self._interaction.expansion if role == QUERY else None
        if expansion and (more := expansion.length - read) > 0:
            side = self.tokenizer.padding_side
            values = {"input_ids": self._expanding, "attention_mask": int(expansion.attend)}
            features = {
                name: _longer(value, more, values.get(name, 0), side)
                for name, value in sample.features.items()
            }
            counted = _longer(counted[None], more, 1, side)[0]
            sample = replace(sample, features=features)
        sample.extras |= {"kept": counted, "read": read}
        return sample

    def vector(self, output: Mapping[str, Any], parameters: Mapping[str, Any]) -> "torch.Tensor":
        hidden = output["last_hidden_state"][0].float()
        normalize = parameters.get("normalize") is not False
        vectors = self._head.vectors(hidden[output["kept"]], normalize=normalize)
        width = vectors.shape[1]
        if parameters.get("dimensions") not in (None, width):
            raise wrong_dimensions(f"This model's vectors have {width} dimensions.")
        return vectors

    def plain(self, vector: "torch.Tensor") -> Any:
        return vector.numpy()

    def listed(self, vector: "torch.Tensor") -> list[list[float]]:
        plain: Any = vector
        return plain.tolist()

    def score(self, query: "torch.Tensor", document: "torch.Tensor") -> float:
        return measure(self.about.similarity, TOKENS, MAX_SIM)(query, document)

    def likeness(self, source: "torch.Tensor", other: "torch.Tensor") -> float:
        return measure(self.about.similarity, TOKENS, MEAN_MAX_SIM)(source, other)


def _longer(value: "torch.Tensor", more: int, filling: int, side: str) -> "torch.Tensor":
    """Returns a (1, length) tensor padded to (1, length + more)."""
    import torch

    padding = value.new_full((1, more), filling)
    return torch.cat([value, padding] if side == "right" else [padding, value], dim=1)
