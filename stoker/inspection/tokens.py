"""Checks the tokenizer against the embedding: tokens that every text needs must have a row in it.

Further tokens beyond the embedding are common and harmless: a request with a text that contains one
is rejected. This module covers only tokens that no text can do without.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from stoker.inspection.config import CONFIG
from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet
from stoker.inspection.gguf_model import TOKENIZER

_KEPT = ("added_tokens", "post_processor")
_TEMPLATE, _TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
_MOST_BYTES = 1 << 20
_NESTED = ("text_config", "decoder", "text_encoder")
_TEMPLATE_BLOCK = re.compile(r"\{%-?\s*(\w+)([^%]*)-?%\}")
_OPTIONAL = re.compile(
    r"tool|image|video|audio|think|reason|document|type|function|builtin|content"
)
"""Words in a condition or loop of a template. Such a block is not part of every conversation."""


def essentials(tokenizer: Json) -> Json:
    """Returns the parts of a tokenizer.json that this module reads. Its vocabulary may be large."""
    parts = tokenizer if isinstance(tokenizer, dict) else {}
    return {name: parts[name] for name in _KEPT if name in parts}


def find_template(files: FileSet, documents: Mapping[str, Json]) -> str | None:
    """Returns the chat template, or the default one of several."""
    if files.sizes.get(_TEMPLATE, _MOST_BYTES) < _MOST_BYTES:
        return files.whole(_TEMPLATE).decode("utf-8", "replace")
    config = documents.get(_TOKENIZER_CONFIG)
    template = config.get("chat_template") if isinstance(config, dict) else None
    named = (
        [item for item in template if isinstance(item, dict)] if isinstance(template, list) else []
    )
    default = [item.get("template") for item in named if item.get("name") == "default"]
    chosen = default[0] if default else template
    return chosen if isinstance(chosen, str) else None


def refuse_missing_rows(documents: Mapping[str, Json], template: str | None) -> None:
    """Rejects a tokenizer with required tokens that have no row in the model's embedding.

    Required tokens surround every text or appear in every conversation.

    Args:
        documents: with config.json and tokenizer.json, if it exists.
        template: the chat template of a language model, or None.

    Raises:
        InspectionError: `TOKENIZER_MISMATCH`.
    """
    rows = _rows(documents.get(CONFIG))
    tokenizer = documents.get(TOKENIZER)
    if rows is None or not isinstance(tokenizer, dict):
        return
    for name, token in _around(tokenizer.get("post_processor")):
        _refuse_beyond(name, token, rows, "it is put around every text")
    plain = _always_written(template or "")
    for name, token in _added(tokenizer.get("added_tokens")):
        if name in plain:
            _refuse_beyond(name, token, rows, "the chat template needs it")


def _refuse_beyond(name: str, token: int, rows: int, why: str) -> None:
    if token >= rows:
        raise InspectionError(
            FailureCode.TOKENIZER_MISMATCH,
            f"{TOKENIZER} has the token {quoted(name)} with the id {token}, and {why}; but the "
            f"model has {rows} tokens, 0 to {rows - 1} ({CONFIG}: vocab_size). Upload the "
            "tokenizer that belongs to the weights, or resize the embedding and save the model.",
            TOKENIZER,
        )


def _rows(config: Json) -> int | None:
    """Returns the number of rows of the text embedding."""
    if not isinstance(config, dict):
        return None
    nested = [config.get(name) for name in _NESTED]
    places = [config, *(place for place in nested if isinstance(place, dict))]
    sizes = [size for place in places if isinstance(size := place.get("vocab_size"), int)]
    return max(sizes, default=0) or None


def _around(processor: Json) -> Iterator[tuple[str, int]]:
    """Yields the special tokens of a tokenizer's post-processor, with their ids."""
    if not isinstance(processor, dict):
        return
    parts = processor.get("processors")
    for part in parts if isinstance(parts, list) else ():
        yield from _around(part)
    for name in ("cls", "sep"):
        pair = processor.get(name)
        if isinstance(pair, list) and len(pair) == 2:
            yield from _pairs([(pair[0], pair[1])])
    special = processor.get("special_tokens")
    if isinstance(special, dict):
        used = str(processor.get("single"))
        for name, entry in special.items():
            ids = entry.get("ids") if isinstance(entry, dict) else None
            if isinstance(ids, list) and repr(name) in used:
                yield from _pairs((name, token) for token in ids)


def _added(tokens: Json) -> Iterator[tuple[str, int]]:
    for entry in tokens if isinstance(tokens, list) else ():
        if isinstance(entry, dict) and entry.get("content"):
            yield from _pairs([(entry.get("content"), entry.get("id"))])


def _pairs(pairs: Iterable[tuple[Json, Json]]) -> Iterator[tuple[str, int]]:
    for name, token in pairs:
        if isinstance(name, str) and isinstance(token, int):
            yield name, token


def _always_written(template: str) -> str:
    """Returns the parts of a chat template that are outside of conditions on optional content."""
    pieces: list[str] = []
    guards: list[bool] = []
    place = 0
    for block in _TEMPLATE_BLOCK.finditer(template):
        if not any(guards):
            pieces.append(template[place : block.start()])
        place = block.end()
        word, rest = block[1], block[2]
        if word in ("if", "for"):
            guards.append(bool(_OPTIONAL.search(rest)))
        elif word in ("elif", "else") and guards:
            # Other branches of a condition are as optional as the first.
            guards[-1] = guards[-1] or bool(_OPTIONAL.search(rest))
        elif word in ("endif", "endfor") and guards:
            guards.pop()
        elif word == "macro":
            guards.append(True)
        elif word == "endmacro" and guards:
            guards.pop()
    pieces.append("" if any(guards) else template[place:])
    return "".join(pieces)
