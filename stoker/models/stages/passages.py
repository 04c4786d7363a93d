"""Reads a long text for a question, window by window, and finds the best passages of each
window.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.text import TextStages

if TYPE_CHECKING:
    import torch

WINDOW = 384
OVERLAP = 128
_AT_ONCE = 256
"""Number of passages that are read from a tensor at once."""

Found = tuple[int, int]
"""Index of a passage's first character, and the index after its last one."""


class ReadingStages(TextStages):
    """Stages of models that return each token's logits for the start and the end of an answer."""

    per_token = ("start_logits", "end_logits")

    def first_tokens(self, question: str, count: int) -> str:
        """Returns the first `count` tokens of a question as text."""
        encoded = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)
        places = encoded["offset_mapping"]
        return question if len(places) <= count else question[: places[count - 1][1]]

    def windows(
        self, question: str, context: str, *, size: int | None, overlap: int | None
    ) -> list[Sample]:
        """Returns a sample of the question with each part of the context.

        Args:
            size: Number of tokens in a window, including the question and special tokens.
            overlap: Number of context tokens that a window shares with the next one.

        Raises:
            InputError: A window exceeds the model's limit, or leaves no room for the context.
        """
        limit = self.max_tokens()
        if size is not None and size > limit:
            raise _refusal("max_seq_len", f"is {size}; this model takes at most {limit} tokens.")
        size = size or min(WINDOW, limit)
        question_tokens = self.tokenizer(question, add_special_tokens=False)["input_ids"]
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        room = size - special - len(question_tokens)
        if room < 1:
            raise _refusal(
                "max_seq_len",
                f"must be more than {special + len(question_tokens)}: the question alone has "
                f"{len(question_tokens)} tokens. The maximum is {limit}; 'max_question_len' "
                "truncates the question.",
            )
        if overlap is not None and overlap >= room:
            raise _refusal(
                "doc_stride",
                f"must be less than {room}, the number of context tokens in a window.",
            )
        stride = min(OVERLAP, size // 2, room // 2) if overlap is None else overlap
        # With padding on the left, the context is on the left too, as in the model's training.
        right = self.tokenizer.padding_side == "right"
        encoded = self.tokenizer(
            *((question, context) if right else (context, question)),
            truncation="only_second" if right else "only_first",
            max_length=size,
            stride=stride,
            return_overflowing_tokens=True,
        )
        return [self._window(encoding, context, part=int(right)) for encoding in encoded.encodings]

    def probe(self, length: int, number: int = 0) -> Sample:
        """Returns a sample of a question and a text, with the tokenizer's tokens around and between
        them.
        """
        import torch

        pair: Mapping[str, torch.Tensor] = self.tokenizer("a", "a", return_tensors="pt")
        tokens: Any = pair["input_ids"][0]
        ids: list[int] = tokens.tolist()
        special = {*self.tokenizer.all_special_ids}
        # The last word is the second text, which is extended to the length.
        at = max((place for place, token in enumerate(ids) if token not in special), default=0)
        more = min(length, self.max_tokens()) - len(ids)
        if more < 0:
            return Sample({name: pair[name] for name in self.tokenizer.model_input_names})
        features = {
            name: torch.cat(
                [value[:, :at], value[:, at : at + 1].expand(1, more + 1), value[:, at + 1 :]], 1
            )
            for name, value in ((name, pair[name]) for name in self.tokenizer.model_input_names)
        }
        features["input_ids"][0, at : at + more + 1] = torch.tensor(self.filling(more + 1, number))
        return Sample(features)

    def _window(self, encoding: Any, context: str, *, part: int) -> Sample:
        """Returns a sample of one window, with extras that locate its passages.

        Args:
            part: Index of the context among the two texts.
        """
        import torch

        values = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        features = {
            name: torch.tensor([values[name]])
            for name in self.tokenizer.model_input_names
            if name in values
        }
        inside = torch.tensor([number == part for number in encoding.sequence_ids])
        if not inside.any():
            raise InputError("The context has no tokens.", field="context", of_item=False)
        first = self.tokenizer.cls_token_id
        return Sample(
            features,
            {
                "context": context,
                "inside": inside,
                "null": encoding.ids.index(first) if first in encoding.ids else None,
                "offsets": encoding.offsets,
                "words": encoding.word_ids,
            },
        )


def passages(
    window: Mapping[str, Any], count: int, longest: int, *, words: bool
) -> dict[Found, float]:
    """Returns the most likely passages of a window, in characters of the context, best first.

    A passage's probability is the probability that its first token starts an answer, times the
    probability that its last token ends it. Both are distributed over the context and the token
    that stands for no answer.

    Args:
        count: Maximum number of passages.
        longest: Maximum number of tokens in a passage.
        words: True to extend passages to whole words. Of passages that become equal, the most
            likely one counts.
    """
    offsets: list[Found] = window["offsets"]
    scores: dict[Found, float] = {}
    for start, end, score in _spans(window, longest):
        first, last = _whole_words(window, start, end) if words else (start, end)
        scores.setdefault((offsets[first][0], offsets[last][1]), score)
        if len(scores) == count:
            break
    return scores


def no_answer(window: Mapping[str, Any]) -> float:
    """Returns the probability that a window has no answer, or 1 if no token stands for that."""
    null: int | None = window["null"]
    if null is None:
        return 1.0
    starts, ends = _probabilities(window)
    return (starts[null] * ends[null]).item()


def _spans(window: Mapping[str, Any], longest: int) -> Iterator[tuple[int, int, float]]:
    """Yields (first token, last token, probability) of every passage, best first."""
    import torch

    inside: torch.Tensor = window["inside"]
    # -1 marks invalid passages, because a probability may be 0.
    begins, ends = _probabilities(window)
    size = inside.shape[0]
    # Row d, column s: the passage from s to s + d.
    scores = torch.full((min(longest, size), size), -1.0)
    for more in range(scores.shape[0]):
        score = begins[: size - more] * ends[more:]
        scores[more, : size - more] = score.where(inside[: size - more] & inside[more:], -1.0)
    flat: Any = scores.flatten()
    values, places = flat.sort(descending=True)
    for start in range(0, scores.numel(), _AT_ONCE):
        some: list[float] = values[start : start + _AT_ONCE].tolist()
        where: list[int] = places[start : start + _AT_ONCE].tolist()
        for value, place in zip(some, where, strict=True):
            if value < 0:
                return
            yield place % size, place % size + place // size, value


def _probabilities(window: Mapping[str, Any]) -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    allowed: torch.Tensor = window["inside"].clone()
    if window["null"] is not None:
        allowed[window["null"]] = True
    begins, ends = (
        torch.softmax(window[name][0].masked_fill(~allowed, float("-inf")), dim=-1)
        for name in ("start_logits", "end_logits")
    )
    return begins, ends


def _whole_words(window: Mapping[str, Any], first: int, last: int) -> tuple[int, int]:
    numbers, inside = window["words"], window["inside"]

    def same_word(one: int, other: int) -> bool:
        within = 0 <= other < len(numbers) and bool(inside[other])
        return within and numbers[one] is not None and numbers[one] == numbers[other]

    while same_word(first, first - 1):
        first -= 1
    while same_word(last, last + 1):
        last += 1
    return first, last


def _refusal(field: str, what: str) -> InputError:
    return InputError(f"'{field}' {what}", field=field, of_item=False)
