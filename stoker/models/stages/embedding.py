"""Stages of models that turn a text into one or many vectors for search."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from stoker.models.stages.base import ContextLengthError, InputError, Sample
from stoker.models.stages.late_interaction import DOCUMENT, QUERY
from stoker.models.stages.pairs import Relevance
from stoker.models.stages.sentence_modules import SETTINGS, Kind, Sentence
from stoker.models.stages.text import TextStages
from stoker.wire.notices import Notice


class SparseVector(NamedTuple):
    """Nonzero values of a long vector."""

    indices: Any
    """Array (numbers,) of int64, ascending."""
    values: Any
    """Array (numbers,) of float32."""


@dataclass(frozen=True)
class Comparable:
    """Vector of a text and a function that compares it with other vectors of the same model."""

    vector: Any
    likeness: Callable[[Any, Any], float]

    def to(self, other: "Comparable") -> float:
        return self.likeness(self.vector, other.vector)


class EmbeddingStages(TextStages):
    """Base of embedding stages.

    Items are texts or, for some endpoints, objects with `tokens` or with `query` and `document`.
    """

    vectors: Kind
    """Kind of vectors that the model makes."""
    about: Sentence

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._counted: dict[str, int] = {}

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.notices = [
            Notice("sentence_setting", f"'{name}' of {SETTINGS} has no effect on this server.")
            for name in self.about.unread
        ]

    @abstractmethod
    def vector(self, output: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        """Returns the vector of a text: a (features,) or (tokens, features) tensor, or a
        `SparseVector` of tensors.
        """

    @abstractmethod
    def plain(self, vector: Any) -> Any:
        """Returns the vector as numpy arrays, for `finish`."""

    @abstractmethod
    def listed(self, vector: Any) -> Any:
        """Returns the vector in JSON format."""

    @abstractmethod
    def score(self, query: Any, document: Any) -> float:
        """Returns the relevance of a document to a query from their vectors. Higher is more
        relevant.
        """

    @abstractmethod
    def likeness(self, source: Any, other: Any) -> float:
        """Returns the similarity of two texts from their vectors. Higher is more similar."""

    def max_tokens(self) -> int:
        return min(super().max_tokens(), self.about.max_tokens or super().max_tokens())

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        self._check(parameters)
        field = parameters.get("field", "inputs")
        if not isinstance(item, dict):
            return [self.embedded_text(item, self.prompt(parameters), parameters, field=field)]
        fields = cast("dict[str, Any]", item)
        if "image" in fields:
            raise InputError("This model embeds texts, not images.", field=field)
        if "tokens" in fields:
            truncation = bool(parameters.get("truncation"))
            return [self.token_sample(fields["tokens"], truncation=truncation, field=field)]
        query, document = self.pair_prompts()
        most = parameters.get("max_tokens_per_doc")
        return [
            self.embedded_text(fields["query"], query, parameters, field=QUERY, of_item=False),
            self.embedded_text(
                fields["document"], document, parameters, field="documents", most=most
            ),
        ]

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
        """Returns a sample of a text after a prompt. Raises `InputError`."""
        truncation = bool(parameters.get("truncation"))
        prompt_tokens = self._prompt_tokens(prompt)
        if prompt_tokens and parameters.get("truncation_side") == "left":
            raise cuts_prompt()
        try:
            sample = self.text_sample(
                self.cased(prompt + text), truncation=truncation, most=most, field=field
            )
        except InputError as error:
            error.field, error.of_item = field, of_item
            raise
        sample.extras["prompt_tokens"] = prompt_tokens
        return sample

    def cased(self, text: str) -> str:
        return text.lower() if self.about.lowercase else text

    def prompt(self, parameters: Mapping[str, Any]) -> str:
        """Returns the prompt that a request names. Raises `InputError`."""
        name, about = parameters.get("prompt_name"), self.about
        if name is None:
            return about.default_prompt
        if name not in about.prompts:
            known = ", ".join(f"'{prompt_name}'" for prompt_name in about.prompts) or "none"
            raise InputError(
                f"This model has no prompt '{name}'; it has {known}.",
                field="prompt_name",
                of_item=False,
            )
        return about.prompts[name]

    def pair_prompts(self) -> tuple[str, str]:
        """Returns the prompts for comparisons of a query and a document, as `encode_query` and
        `encode_document` of sentence-transformers choose them.
        """
        return self.about.prompts.get(QUERY, ""), self.about.prompts.get(DOCUMENT, "")

    def _prompt_tokens(self, prompt: str) -> int:
        """Returns the number of leading tokens that belong to the prompt and are excluded from
        pooling.

        Follows sentence-transformers: counts the tokens of the prompt alone, without a special
        token at their end. The counts are cached, as a model has few prompts.
        """
        if self.about.include_prompt or not prompt:
            return 0
        if prompt not in self._counted:
            encoded = self.tokenizer(
                self.cased(prompt), truncation=True, max_length=self.max_tokens()
            )
            ids: Sequence[int] = encoded["input_ids"]
            self._counted[prompt] = len(ids) - (
                bool(ids) and ids[-1] in self.tokenizer.all_special_ids
            )
        return self._counted[prompt]

    def too_long(self, length: int, limit: int, field: str = "inputs") -> InputError:
        if field != "input":
            return super().too_long(length, limit, field)
        # OpenAI's wording, which clients of this endpoint recognise. Some clients search in a body
        # printed by Python, where mixed quotes would escape the apostrophe of "model's".
        advice = "Shorten it, or send 'truncation': true to cut it."
        detail = f"your input resulted in {length} tokens. {advice}"
        return ContextLengthError(limit, detail, field=field, of_item=True)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """Returns the vector of a text as `listed` formats it, or the relevance of a document to a
        query.

        With the parameter `counted`: the vector from `plain`, and the number of tokens. With
        `compared`: a `Comparable`.
        """
        vectors = [self.vector(output, parameters) for output in outputs]
        tokens = sum(output["input_ids"].shape[1] for output in outputs)
        if len(vectors) > 1:
            score = self.score(*vectors)
            return Relevance(score, score, tokens)
        if parameters.get("counted"):
            return self.plain(vectors[0]), tokens
        if parameters.get("compared"):
            return Comparable(vectors[0], self.likeness)
        return self.listed(vectors[0])

    def _check(self, parameters: Mapping[str, Any]) -> None:
        requested = parameters.get("embedding_type", self.vectors)
        if requested != self.vectors:
            raise InputError(
                f"This model makes {_WORDS[self.vectors]}: send '{self.vectors}', or leave it out.",
                field="embedding_type",
                of_item=False,
            )
        makes: Sequence[str] = parameters.get("makes") or (self.vectors,)
        if self.vectors not in makes:
            raise InputError(
                f"This model makes {_WORDS[self.vectors]}: use {_PATHS[self.vectors]}.",
                field="model",
                of_item=False,
            )
        if parameters.get("scores") == "raw":
            raise InputError(
                "This model has no raw scores, because it compares vectors: leave it out.",
                field="raw_scores",
                of_item=False,
            )


_WORDS: Mapping[Kind, str] = {
    "dense": "one dense vector per text",
    "sparse": "one sparse vector per text",
    "multi": "one vector per token",
}
_PATHS: Mapping[Kind, str] = {
    "dense": "/embed",
    "sparse": "/embed_sparse",
    "multi": "/embed_all",
}
"""Maps a kind of vectors to the path that returns them to clients of other servers."""


def cuts_prompt() -> InputError:
    return InputError(
        "must be 'Right': this model needs the prompt at the beginning of its texts.",
        field="truncation_direction",
        of_item=False,
    )


def wrong_dimensions(message: str) -> InputError:
    return InputError(message, field="dimensions", of_item=False)
