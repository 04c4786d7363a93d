"""Stages of models that turn a text into what it is found by: a vector, or many of them."""

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
    """The numbers of a long vector that are not zero."""

    indices: Any
    """(numbers,) int64, ascending."""
    values: Any
    """(numbers,) float32."""


@dataclass(frozen=True)
class Comparable:
    """A text's vector, and what compares it to others of the same model."""

    vector: Any
    likeness: Callable[[Any, Any], float]

    def to(self, other: "Comparable") -> float:
        return self.likeness(self.vector, other.vector)


class EmbeddingStages(TextStages):
    """Items are texts, and of some endpoints objects: with `tokens`, or `query` and `document`."""

    vectors: Kind
    """What a text becomes."""
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
        """A text's: a (features,) or (tokens, features) tensor, or a `SparseVector` of them."""

    @abstractmethod
    def plain(self, vector: Any) -> Any:
        """As `finish` takes it: arrays of numpy."""

    @abstractmethod
    def listed(self, vector: Any) -> Any:
        """As JSON has it."""

    @abstractmethod
    def score(self, query: Any, document: Any) -> float:
        """How relevant a document is to a query, of both vectors; more is more relevant."""

    @abstractmethod
    def likeness(self, source: Any, other: Any) -> float:
        """How alike two texts are, of both vectors; more is more alike."""

    def max_tokens(self) -> int:
        return min(super().max_tokens(), self.about.max_tokens or super().max_tokens())

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        self._check(parameters)
        field = parameters.get("field", "inputs")
        if not isinstance(item, dict):
            return [self.embedded_text(item, self.prompt(parameters), parameters, field=field)]
        given = cast("dict[str, Any]", item)
        if "image" in given:
            raise InputError("This model embeds texts, and no images.", field=field)
        if "tokens" in given:
            truncation = bool(parameters.get("truncation"))
            return [self.token_sample(given["tokens"], truncation=truncation, field=field)]
        query, document = self.pair_prompts()
        most = parameters.get("max_tokens_per_doc")
        return [
            self.embedded_text(given["query"], query, parameters, field=QUERY, of_item=False),
            self.embedded_text(
                given["document"], document, parameters, field="documents", most=most
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
        """A text behind a prompt. Raises `InputError`."""
        truncation = bool(parameters.get("truncation"))
        try:
            sample = self.text_sample(
                self.cased(prompt + text), truncation=truncation, most=most, field=field
            )
        except InputError as error:
            error.field, error.of_item = field, of_item
            raise
        sample.extras["prompt_tokens"] = self._prompt_tokens(prompt)
        return sample

    def cased(self, text: str) -> str:
        return text.lower() if self.about.lowercase else text

    def prompt(self, parameters: Mapping[str, Any]) -> str:
        """The prompt that a request names. Raises `InputError`."""
        name, about = parameters.get("prompt_name"), self.about
        if name is None:
            return about.default_prompt
        if name not in about.prompts:
            known = ", ".join(f"'{one}'" for one in about.prompts) or "none"
            raise InputError(
                f"This model has no prompt '{name}'; it has {known}.",
                field="prompt_name",
                of_item=False,
            )
        return about.prompts[name]

    def pair_prompts(self) -> tuple[str, str]:
        """Those of a query and of a document that are compared, as `encode_query` and
        `encode_document` of sentence-transformers choose them.
        """
        return self.about.prompts.get(QUERY, ""), self.about.prompts.get(DOCUMENT, "")

    def _prompt_tokens(self, prompt: str) -> int:
        """How many of a text's leading tokens are its prompt's and are left out of pooling.

        They are counted as sentence-transformers counts them: those of the prompt alone, without
        a special one at their end. A model has few prompts, and they stay the same.
        """
        if self.about.include_prompt or not prompt:
            return 0
        if prompt not in self._counted:
            given = self.tokenizer(
                self.cased(prompt), truncation=True, max_length=self.max_tokens()
            )
            ids: Sequence[int] = given["input_ids"]
            self._counted[prompt] = len(ids) - (
                bool(ids) and ids[-1] in self.tokenizer.all_special_ids
            )
        return self._counted[prompt]

    def too_long(self, length: int, limit: int, field: str = "inputs") -> InputError:
        if field != "input":
            return super().too_long(length, limit, field)
        # Of OpenAI's convention: its clients know it by other words. Some look for those in a body
        # that Python has printed, where both kinds of quotes in one text would escape "model's".
        advice = "Shorten it, or send 'truncation': true to cut it."
        what = f"your input resulted in {length} tokens. {advice}"
        return ContextLengthError(limit, what, field=field, of_item=True)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """The vector of a text as `listed` has it; the relevance of a document to a query.

        With the parameter `counted`: the vector as `plain` has it, and the number of tokens. With
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
        asked = parameters.get("embedding_type", self.vectors)
        if asked != self.vectors:
            raise InputError(
                f"This model makes {_WORDS[self.vectors]}: ask for '{self.vectors}', or leave it "
                "out.",
                field="embedding_type",
                of_item=False,
            )


_WORDS: Mapping[Kind, str] = {
    "dense": "one dense vector a text",
    "sparse": "one sparse vector a text",
    "multi": "one vector a token",
}


def wrong_dimensions(message: str) -> InputError:
    return InputError(message, field="dimensions", of_item=False)
