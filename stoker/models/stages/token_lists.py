"""Lists the tokens of a text, and the text of tokens, without running a model."""

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import TypedDict

from stoker.models.stages.base import InputError


class ListedToken(TypedDict):
    """A token of a text. `start` and `stop` count the text's characters. They are null for special
    tokens, which the tokenizer adds.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def listed(tokenizer: Any, text: str, *, special: bool) -> list[ListedToken]:
    """Returns the tokens of a text with their places in it.

    Args:
        special: True adds the special tokens that the model reads around a text.
    """
    if not tokenizer.is_fast:
        # Such tokenizers do not know the places.
        return _unplaced(tokenizer, ids_of(tokenizer, text, special=special))
    encoded = tokenizer(
        text,
        add_special_tokens=special,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    ids: list[int] = encoded["input_ids"]
    names: list[str] = tokenizer.convert_ids_to_tokens(ids)
    return [
        ListedToken(id=token, text=name, special=True, start=None, stop=None)
        if is_special
        else ListedToken(id=token, text=text[start:stop], special=False, start=start, stop=stop)
        for token, name, is_special, (start, stop) in zip(
            ids, names, encoded["special_tokens_mask"], encoded["offset_mapping"], strict=True
        )
    ]


def _unplaced(tokenizer: Any, ids: Sequence[int]) -> list[ListedToken]:
    special = set(tokenizer.all_special_ids)
    return [
        ListedToken(id=token, text=name, special=token in special, start=None, stop=None)
        for token, name in zip(ids, strings(tokenizer, ids), strict=True)
    ]


def ids_of(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    """Returns the tokens of a text. See `listed`."""
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Returns the tokens as the vocabulary spells them."""
    return [str(name) for name in tokenizer.convert_ids_to_tokens(ids)]


def tokenized(
    tokenizer: Any, ids: Sequence[int], max_tokens: int | None, *, with_strings: bool
) -> dict[str, Any]:
    """Returns vLLM's answer for the tokens of a prompt."""
    return {
        "count": len(ids),
        "max_model_len": max_tokens,
        "tokens": ids,
        "token_strs": strings(tokenizer, ids) if with_strings else None,
    }


def decoded(tokenizer: Any, ids: Sequence[int], *, skip_special: bool) -> str:
    """Returns the text of tokens, which `refuse_unknown` has checked."""
    return str(tokenizer.decode(ids, skip_special_tokens=skip_special))


def refuse_unknown(
    tokenizer: Any, ids: Iterable[int], embedded: int | None, *, field: str, of_item: bool = True
) -> None:
    """Raises `InputError` for a token that neither the tokenizer nor the model has.

    Args:
        embedded: number of tokens that the model knows. None if it is unknown.
    """
    size = max(len(tokenizer), embedded or 0)
    highest = max(ids, default=0)
    if highest >= size:
        raise InputError(
            f"Token {highest} does not exist: this model's token ids are below {size}.",
            field=field,
            of_item=of_item,
        )
