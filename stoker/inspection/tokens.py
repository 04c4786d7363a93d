"""The tokenizer against the embedding: tokens that every text needs must have a row there.

Further tokens beyond the embedding are common and harmless: a text that contains one is refused
when it is sent. Here are only the tokens that no text can do without.
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
"""Of a condition or a loop: what it guards is not a part of every conversation."""


def essentials(tokenizer: Json) -> Json:
    """The parts of a tokenizer.json that are looked at here; its vocabulary may be large."""
    found = tokenizer if isinstance(tokenizer, dict) else {}
    return {name: found[name] for name in _KEPT if name in found}


def find_template(files: FileSet, documents: Mapping[str, Json]) -> str | None:
    """The chat template; of several, the default."""
    if files.sizes.get(_TEMPLATE, _MOST_BYTES) < _MOST_BYTES:
        return files.whole(_TEMPLATE).decode("utf-8", "replace")
    config = documents.get(_TOKENIZER_CONFIG)
    template = config.get("chat_template") if isinstance(config, dict) else None
    named = [one for one in template if isinstance(one, dict)] if isinstance(template, list) else []
    default = [one.get("template") for one in named if one.get("name") == "default"]
    found = default[0] if default else template
    return found if isinstance(found, str) else None


def refuse_missing_rows(documents: Mapping[str, Json], template: str | None) -> None:
    """Refuse a tokenizer that puts a token around every text, or into every conversation, that the
    model's embedding has no row for.

    Args:
        documents: with config.json and tokenizer.json, if there is one.
        template: the chat template of a language model; None: there is none.

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
    """Rows of the embedding for texts."""
    if not isinstance(config, dict):
        return None
    nested = [config.get(name) for name in _NESTED]
    places = [config, *(one for one in nested if isinstance(one, dict))]
    sizes = [size for one in places if isinstance(size := one.get("vocab_size"), int)]
    return max(sizes, default=0) or None


def _around(processor: Json) -> Iterator[tuple[str, int]]:
    """Special tokens of a post-processor of tokenizers, with their ids."""
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
        for name, one in special.items():
            ids = one.get("ids") if isinstance(one, dict) else None
            if isinstance(ids, list) and repr(name) in used:
                yield from _pairs((name, token) for token in ids)


def _added(tokens: Json) -> Iterator[tuple[str, int]]:
    for one in tokens if isinstance(tokens, list) else ():
        if isinstance(one, dict) and one.get("content"):
            yield from _pairs([(one.get("content"), one.get("id"))])


def _pairs(pairs: Iterable[tuple[Json, Json]]) -> Iterator[tuple[str, int]]:
    for name, token in pairs:
        if isinstance(name, str) and isinstance(token, int):
            yield name, token


def _always_written(template: str) -> str:
    """What of a chat template does not stand below a condition about what may be absent."""
    kept: list[str] = []
    guards: list[bool] = []
    place = 0
    for block in _TEMPLATE_BLOCK.finditer(template):
        if not any(guards):
            kept.append(template[place : block.start()])
        place = block.end()
        word, rest = block[1], block[2]
        if word in ("if", "for"):
            guards.append(bool(_OPTIONAL.search(rest)))
        elif word in ("elif", "else") and guards:
            # The other branch of a condition is as optional as the first.
            guards[-1] = guards[-1] or bool(_OPTIONAL.search(rest))
        elif word in ("endif", "endfor") and guards:
            guards.pop()
        elif word == "macro":
            guards.append(True)
        elif word == "endmacro" and guards:
            guards.pop()
    kept.append("" if any(guards) else template[place:])
    return "".join(kept)
