"""Tokens that a tokenizer makes and the model has no row for in its embedding.

Tokenizers often have more tokens than the embedding has rows: tokens that were added for training,
or for a larger model of the family. They do no harm until a text contains one of them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from stoker.models.stages.base import InputError, Sample, Stages

log = logging.getLogger(__name__)

_FIELDS: Mapping[str, str] = {"document": "documents"}
"""Names of an item's parts that requests call otherwise."""
_OF_ITEMS = frozenset({"inputs", "input", "documents", "instances"})
_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id")


class UnknownTokenError(ValueError):
    """The model cannot read any text: its own special tokens have no row in its embedding."""


def learn(stages: Stages, model: Any) -> None:
    """Finds out which tokens the model that was attached to the stages can read.

    Raises:
        UnknownTokenError: it cannot read what the tokenizer puts around every text.
    """
    rows = stages.embedded = embedding_rows(model)
    tokenizer = getattr(stages, "tokenizer", None)
    if rows is None or tokenizer is None:
        return
    check_special(tokenizer, rows)
    if stages.padding.get("input_ids", 0) >= rows:
        # Any token that the model knows will do: the mask leaves padding out.
        own = getattr(model.config, "pad_token_id", None)
        known = own if isinstance(own, int) and 0 <= own < rows else 0
        stages.padding = {**stages.padding, "input_ids": known}


def embedding_rows(model: Any) -> int | None:
    """The number of tokens that a model can read; None: it reads none, or has no table of them."""
    import torch

    try:
        found = model.get_input_embeddings()
    except (AttributeError, NotImplementedError, TypeError):
        found = None
    if isinstance(found, torch.nn.Embedding):
        return found.num_embeddings
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return size if isinstance(size, int) and size > 0 else None


def check_special(tokenizer: Any, rows: int) -> None:
    """Raises `UnknownTokenError` if the tokens around every text have no row in the embedding."""
    try:
        around = cast("list[Any]", tokenizer("")["input_ids"])
    except Exception:
        # Some take no empty text, or more than a text. What requests bring is checked anyway.
        log.debug("tokenizer rejects empty text", exc_info=True)
        return
    around = [token for token in around if isinstance(token, int)]
    refuse_needed(tokenizer, around, rows, "the tokenizer puts it around every text")


def refuse_needed(tokenizer: Any, tokens: Iterable[int], rows: int, why: str) -> None:
    """Raises `UnknownTokenError` if one of the tokens that every prompt has is without a row."""
    for token in tokens:
        if token >= rows:
            name = tokenizer.convert_ids_to_tokens(token)
            raise UnknownTokenError(
                f"the model has no embedding for the token '{name}' ({token}), and {why}: the "
                f"embedding has rows for the tokens 0 to {rows - 1}. Upload the tokenizer that "
                "belongs to the weights, or weights whose embedding was resized for it."
            )


def refuse_unknown(
    samples: Sequence[Sample],
    rows: int | None,
    tokenizer: Any,
    config: Any,
    *,
    item: Any,
    parameters: Mapping[str, Any],
) -> None:
    """Raises `InputError`, which names the token, if a sample has one without a row.

    Args:
        rows: of the embedding; None: there is nothing to check.
        item, parameters: of the request, to find the field at fault.
    """
    if rows is None:
        return
    for sample in samples:
        ids = sample.features.get("input_ids")
        if ids is None or ids.is_floating_point() or not ids.numel() or int(ids.max()) < rows:
            continue
        masked = {getattr(config, name, None) for name in _PLACEHOLDERS}
        beyond: Any = ids[ids >= rows]
        unknown = [one for one in cast("list[int]", beyond.tolist()) if one not in masked]
        if unknown:
            raise _refusal(unknown[0], rows, tokenizer, item, parameters)


def _refusal(
    token: int, rows: int, tokenizer: Any, item: Any, parameters: Mapping[str, Any]
) -> InputError:
    name = str(tokenizer.convert_ids_to_tokens(token)) if tokenizer else str(token)
    fields = [field for field, text in _texts(item, parameters) if name in text]
    field = fields[0] if fields else str(parameters.get("field", "inputs"))
    return InputError(
        f"The text contains '{name}' (token {token}), which this model cannot read: its embedding "
        f"has rows for the tokens 0 to {rows - 1}. Leave it out.",
        field=field,
        of_item=field in _OF_ITEMS,
    )


def _texts(item: Any, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a request, each with its field."""
    if isinstance(item, str):
        yield str(parameters.get("field", "inputs")), item
    parts = cast("Mapping[str, Any]", item if isinstance(item, dict) else {})
    for name, value in {**parameters, **parts}.items():
        for text in cast("list[Any]", value if isinstance(value, list) else [value]):
            if isinstance(text, str):
                yield _FIELDS.get(name, name), text
