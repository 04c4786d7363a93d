"""Stages of tasks that read a text."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.models.stages import added_tokens
from stoker.models.stages.base import InputError, Sample, Stages
from stoker.models.stages.direct_tokens import DirectTokenizer
from stoker.models.stages.positions import most_positions

if TYPE_CHECKING:
    import torch


MAX_TOKENS = 1 << 20
"""Maximum number of tokens for any model. A tokenizer without a length reports 10 ** 30, which
tokenizers themselves cannot accept.
"""
_PROBED_WORDS = 1000


class TextStages(Stages):
    """Stages with a tokenizer before the model."""

    tokenizer_options: ClassVar[Mapping[str, Any]] = {}
    """Options for further tokenizer outputs that postprocessing needs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self.tokenizer: Any = library.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, **added_tokens.arguments(folder)
        )
        self.padding_side = self.tokenizer.padding_side
        if self.tokenizer.pad_token_id is not None:
            values = {
                "input_ids": self.tokenizer.pad_token_id,
                "token_type_ids": self.tokenizer.pad_token_type_id,
            }
            self.padding = {name: values.get(name, 0) for name in self.tokenizer.model_input_names}
        self._most_positions: int | None = None
        self._direct = DirectTokenizer.of(self.tokenizer, self.tokenizer_options)

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._most_positions = most_positions(model)
        # Pipelines of transformers pass this number to tokenizers.
        self.tokenizer.model_max_length = min(self.tokenizer.model_max_length, MAX_TOKENS)

    def length(self, sample: Sample) -> int:
        return sample.features["input_ids"].shape[1]

    def padded_length(self, longest: int) -> int:
        # The rounded length may exceed the model's positions.
        return max(longest, min(super().padded_length(longest), self.max_tokens()))

    def max_tokens(self) -> int:
        """Returns the maximum number of tokens that the model accepts, including special tokens."""
        most = int(min(self.tokenizer.model_max_length, MAX_TOKENS))
        return most if self._most_positions is None else min(most, self._most_positions)

    def preprocess_item(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        name = parameters.get("truncation_field")
        if name is None:
            return super().preprocess_item(item, parameters)
        # Stages prepare one item at a time.
        own_side = self.tokenizer.truncation_side
        self.tokenizer.truncation_side = parameters.get("truncation_side", own_side)
        try:
            return super().preprocess_item(item, parameters)
        except InputError as error:
            error.message = error.message.replace("'truncation'", f"'{name}'")
            raise
        finally:
            self.tokenizer.truncation_side = own_side

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        truncation, field = bool(parameters.get("truncation")), parameters.get("field", "inputs")
        return [self.text_sample(item, truncation=truncation, field=field)]

    def text_sample(
        self,
        text: str,
        *,
        truncation: bool,
        most: int | None = None,
        field: str = "inputs",
        limit: int | None = None,
    ) -> Sample:
        """Returns a sample of a text. Raises `InputError` with this `field`.

        The text is cut to `most` tokens plus special tokens and, with `truncation`, to `limit`.

        Args:
            limit: Maximum number of tokens. None means the model's limit.
        """
        limit = min(self.max_tokens(), limit or self.max_tokens())
        lengths = [limit] if truncation else []
        if most is not None:
            lengths.append(most + self.tokenizer.num_special_tokens_to_add())
        encoded = self._encoded(text, min(lengths, default=None))
        features = {name: encoded[name] for name in self.tokenizer.model_input_names}
        extras = {name: value for name, value in encoded.items() if name not in features}
        length = features["input_ids"].shape[1]
        if length == 0:
            raise InputError("The text has no tokens: it must not be empty.")
        if length > limit:
            raise self.too_long(length, limit, field)
        return Sample(features, extras)

    def _encoded(self, text: str, most: int | None) -> Mapping[str, Any]:
        """Returns the tokenizer's outputs as tensors, cut to `most` tokens."""
        if self._direct and most is None:
            return self._direct(text)
        cut = {} if most is None else {"max_length": most}
        return self.tokenizer(
            text, return_tensors="pt", truncation=bool(cut), **cut, **self.tokenizer_options
        )

    def token_sample(
        self, tokens: list[int], *, truncation: bool, field: str, limit: int | None = None
    ) -> Sample:
        """Returns a sample of unchanged token ids, limited as in `text_sample`. Raises
        `InputError`.
        """
        import torch

        limit, size = min(self.max_tokens(), limit or self.max_tokens()), self.config.vocab_size
        if (highest := max(tokens)) >= size:
            raise InputError(
                f"Token {highest} does not exist: this model's token ids are below {size}.",
                field=field,
            )
        if len(tokens) > limit and not truncation:
            raise self.too_long(len(tokens), limit, field)
        cuts_left = self.tokenizer.truncation_side == "left"
        ids = torch.tensor([tokens[-limit:] if cuts_left else tokens[:limit]])
        features = {name: torch.zeros_like(ids) for name in self.tokenizer.model_input_names}
        return Sample(features | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def too_long(self, length: int, limit: int, field: str = "inputs") -> InputError:
        return InputError(
            f"The text has {length} tokens; this model takes at most {limit}. "
            "Shorten it, or send 'truncation': true to cut it.",
            field=field,
        )

    def probe(self, length: int, number: int = 0) -> Sample:
        import torch

        length = min(length, self.max_tokens())
        # Features of a real input, stretched to the length.
        text = self.tokenizer("a", return_tensors="pt")
        features = {
            name: torch.full(
                (1, length), 1 if name == "attention_mask" else 0, dtype=text[name].dtype
            )
            for name in self.tokenizer.model_input_names
        }
        return Sample(features | {"input_ids": self._probed(text["input_ids"][0], length, number)})

    def _probed(self, framed: "torch.Tensor", length: int, number: int) -> "torch.Tensor":
        """Returns `length` tokens of the vocabulary or of texts, between the special tokens that
        frame a text.
        """
        import torch

        special = set(self.tokenizer.all_special_ids)
        tokens = self.filling(length, number)
        if length >= len(framed):
            ids = [int(token) for token in framed]
            before = next((at for at, token in enumerate(ids) if token not in special), len(ids))
            after = next((at for at, token in enumerate(ids[::-1]) if token not in special), 0)
            tokens[:before] = ids[:before]
            tokens[length - after :] = ids[len(ids) - after :]
        return torch.tensor([tokens])

    def filling(self, length: int, number: int) -> list[int]:
        """Returns `length` tokens of the vocabulary, or of the texts that `probe` numbers."""
        special = set(self.tokenizer.all_special_ids)
        known = range(min(len(self.tokenizer), _PROBED_WORDS))
        words = [token for token in known if token not in special] or [0]
        if number:
            words = self._read(number, length, special) or words[number % len(words) :] + words
        return [words[place % len(words)] for place in range(length)]

    def _read(self, number: int, length: int, special: Collection[int]) -> list[int]:
        """Returns at least `length` tokens of texts, if they suffice. Returns none if the tokenizer
        knows few of their words.
        """
        from stoker.models.stages import specimens

        kept_tokens: list[int] = []
        read = 0
        for text in specimens.texts(number):
            tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            read += len(tokens)
            kept_tokens += [token for token in tokens if token not in special]
            if read >= length:
                break
        return kept_tokens if 2 * len(kept_tokens) > read else []
