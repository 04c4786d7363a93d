"""Configuration of ColBERT-like models, which make a vector per token and compare texts by late
interaction.

Formats: sentence-transformers (`MultiVectorMask` and the transformer's settings), PyLate
(`config_sentence_transformers.json` of the model type `ColBERT`), and Stanford (`HF_ColBERT` in
config.json, `artifact.metadata`). Inspection and replicas import this module, so it imports no
heavy libraries.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

QUERY, DOCUMENT = "query", "document"
"""Roles of a text. Such a model reads queries and documents differently."""
ROLES = (QUERY, DOCUMENT)
STANFORD = "HF_ColBERT"
"""Architecture of Stanford's format in config.json."""
STANFORD_SETTINGS = "artifact.metadata"
STANFORD_PROJECTION = "linear.weight"
"""Name of the last layer among the model's weights."""
PYLATE = "ColBERT"
"""Model type of PyLate's format in config_sentence_transformers.json."""
MAX_EXPANDED = 8192

_EXPANDED = 32
"""Default number of tokens of a query."""
_STANFORD_MARKERS: Mapping[str, str] = {QUERY: "[unused0]", DOCUMENT: "[unused1]"}


class SettingError(ValueError):
    """Raised for an invalid setting. The message continues the name of the setting's file."""


@dataclass(frozen=True)
class Expansion:
    """Extension of queries by tokens that stand for absent words."""

    length: int
    is_limit: bool
    """True if longer queries are cut to the length."""
    attend: bool = False
    """True if the model attends to these tokens. Their vectors count in any case."""
    token: str | None = None
    """Expansion token. None means the tokenizer's mask token."""


@dataclass(frozen=True)
class Interaction:
    prompts: Mapping[str, str]
    """Maps a role to the prefix of its texts."""
    has_markers: bool
    """True if prompts are special tokens of the model, even if its tokenizer would split them."""
    lengths: Mapping[str, int]
    """Maps a role to its maximum number of tokens."""
    expansion: Expansion | None
    skipped: Sequence[str]
    """Tokens with vectors that are left out."""
    skipped_in: Sequence[str] = (DOCUMENT,)
    """Roles of the texts in which these tokens are left out."""


def of_stanford(settings: Mapping[str, Any]) -> Interaction:
    """Returns the configuration from `artifact.metadata`."""
    markers = {
        QUERY: settings.get("query_token_id") or _STANFORD_MARKERS[QUERY],
        DOCUMENT: settings.get("doc_token_id") or _STANFORD_MARKERS[DOCUMENT],
    }
    length = _length(settings, "query_maxlen") or _EXPANDED
    return Interaction(
        prompts={role: f"{marker} " for role, marker in markers.items()},
        has_markers=True,
        lengths=_lengths({DOCUMENT: _length(settings, "doc_maxlen")}),
        expansion=Expansion(length, True, bool(settings.get("attend_to_mask_tokens"))),
        skipped=[*string.punctuation] if settings.get("mask_punctuation", True) else [],
    )


def of_pylate(settings: Mapping[str, Any]) -> Interaction:
    """Returns the configuration from PyLate's config_sentence_transformers.json."""
    named_prompts: Mapping[str, Any] = settings.get("prompts") or {}
    prompts: dict[str, str] = {}
    for role in ROLES:
        prefix = str(settings.get(f"{role}_prefix") or "")
        prompts[role] = prefix + str(named_prompts.get(role) or "").removeprefix(prefix)
    length, expansion = _length(settings, "query_length") or _EXPANDED, None
    if settings.get("do_query_expansion") is not False:
        expansion = Expansion(length, True, bool(settings.get("attend_to_expansion_tokens")))
    skipped = settings.get("skiplist_words")
    return Interaction(
        prompts=prompts,
        has_markers=True,
        lengths=_lengths({QUERY: length, DOCUMENT: _length(settings, "document_length")}),
        expansion=expansion,
        skipped=[*string.punctuation] if skipped is None else _words(skipped),
    )


def of_modules(
    transformer: Mapping[str, Any], mask: Mapping[str, Any], prompts: Mapping[str, str]
) -> Interaction:
    """Returns the configuration from sentence-transformers' settings.

    Args:
        transformer: Settings of the transformer.
        mask: Settings of the module `MultiVectorMask`.
    """
    if mask.get("keep_only_token_ids"):
        raise SettingError("keeps the vectors of only some tokens, which is not supported.")
    within = mask.get("skiplist_tasks")
    return Interaction(
        prompts={role: prompts.get(role, "") for role in ROLES},
        has_markers=False,
        lengths=_lengths({role: _length(transformer, f"{role}_length") for role in ROLES}),
        expansion=_expansion(transformer.get("query_expansion")),
        skipped=_words(mask.get("skiplist_words") or []),
        skipped_in=(DOCUMENT,) if within is None else _words(within),
    )


def _expansion(given: Any) -> Expansion | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise SettingError("has a query_expansion that is not an object.")
    settings = cast("dict[str, Any]", given)
    length = _length(settings, "length")
    if length is None:
        raise SettingError("has a query_expansion without a length.")
    strategy, token = settings.get("strategy"), settings.get("token")
    if strategy not in ("fixed", "min"):
        raise SettingError(
            f"has the unknown strategy {ascii(strategy)[:80]} to expand queries. Use "
            "'fixed' or 'min'."
        )
    return Expansion(
        length,
        strategy == "fixed",
        bool(settings.get("attend")),
        None if token is None else str(token),
    )


def _length(settings: Mapping[str, Any], name: str) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_EXPANDED:
        raise SettingError(
            f"has the {name} {ascii(value)[:80]}; it must be from 1 to {MAX_EXPANDED}."
        )
    return value


def _lengths(given: Mapping[str, int | None]) -> dict[str, int]:
    return {role: length for role, length in given.items() if length is not None}


def _words(given: Any) -> Sequence[str]:
    if not isinstance(given, list) or not all(
        isinstance(word, str) for word in cast("list[Any]", given)
    ):
        raise SettingError("has another value in the place of a list of words.")
    return cast("list[str]", given)
