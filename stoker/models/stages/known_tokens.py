"""Checks for tokens that a tokenizer makes but that have no row in the model's embedding.

Tokenizers often have more tokens than the embedding has rows: tokens that were added for training
or for a larger model of the family. They cause errors only if a text contains one of them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from stoker.models.stages.base import InputError, Sample, Stages

log = logging.getLogger(__name__)

_FIELDS: Mapping[str, str] = {"document": "documents"}
"""Maps parts of an item to their different names in requests."""
_OF_ITEMS = frozenset({"inputs", "input", "documents", "instances"})
_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id")


class UnknownTokenError(ValueError):
    """Raised if the model cannot read any text, because its own special tokens have no row in its
    embedding.
    """


def learn(stages: Stages, model: Any) -> None:
    """Determines which tokens the model attached to the stages can read.

    Raises:
        UnknownTokenError: The model cannot read the tokens that the tokenizer puts around every
            text.
    """
    rows = stages.embedded = embedding_rows(model)
    tokenizer = getattr(stages, "tokenizer", None)
    if rows is None or tokenizer is None:
        return
    check_special(tokenizer, rows)
    if stages.padding.get("input_ids", 0) >= rows:
        # Any known token is suitable, because the mask excludes padding.
        pad_token = getattr(model.config, "pad_token_id", None)
        known = pad_token if isinstance(pad_token, int) and 0 <= pad_token < rows else 0
        stages.padding = {**stages.padding, "input_ids": known}


def embedding_rows(model: Any) -> int | None:
    """Returns the number of tokens that a model can read. None if it reads none or has no token
    table.
    """
    import torch

    try:
        embedding = model.get_input_embeddings()
    except (AttributeError, NotImplementedError, TypeError):
        embedding = None
    if isinstance(embedding, torch.nn.Embedding):
        return embedding.num_embeddings
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return size if isinstance(size, int) and size > 0 else None


def check_special(tokenizer: Any, rows: int) -> None:
    """Raises `UnknownTokenError` if the tokens around every text have no row in the embedding."""
    try:
        around = cast("list[Any]", tokenizer("")["input_ids"])
    except Exception:
        # Some tokenizers reject an empty text or need more than a text. Requests are checked
        # anyway.
        log.debug("tokenizer rejects empty text", exc_info=True)
        return
    around = [token for token in around if isinstance(token, int)]
    refuse_needed(tokenizer, around, rows, "the tokenizer adds it to every text")


def refuse_needed(tokenizer: Any, tokens: Iterable[int], rows: int, why: str) -> None:
    """Raises `UnknownTokenError` if a token that every prompt contains has no row in the
    embedding.
    """
    for token in tokens:
        if token >= rows:
            name = tokenizer.convert_ids_to_tokens(token)
            raise UnknownTokenError(
                f"the model has no embedding for the token '{name}' ({token}), and {why}: the "
                f"embedding has rows for the tokens 0 to {rows - 1}. Upload the tokenizer that "
                "belongs to the weights, or weights whose embedding was resized for it."
            )


def refuse_unknown(
    stages: Stages, samples: Sequence[Sample], item: Any, parameters: Mapping[str, Any]
) -> None:
    """Raises `InputError`, which names the token, if a sample has a token without a row.

    Args:
        item, parameters: The request's item and parameters, to find the field with the token.
    """
    rows = stages.embedded
    if rows is None:
        return
    for sample in samples:
        ids = sample.features.get("input_ids")
        if ids is None or ids.is_floating_point() or not ids.numel() or int(ids.max()) < rows:
            continue
        masked = {getattr(stages.config, name, None) for name in _PLACEHOLDERS}
        beyond: Any = ids[ids >= rows]
        unknown = [token for token in cast("list[int]", beyond.tolist()) if token not in masked]
        if unknown:
            tokenizer = getattr(stages, "tokenizer", None)
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
    """Yields the texts of a request, each with its field."""
    if isinstance(item, str):
        yield str(parameters.get("field", "inputs")), item
    parts = cast("Mapping[str, Any]", item if isinstance(item, dict) else {})
    for name, value in {**parameters, **parts}.items():
        for text in cast("list[Any]", value if isinstance(value, list) else [value]):
            if isinstance(text, str):
                yield _FIELDS.get(name, name), text
