"""Checks whether config.json describes a model about as large as the weight files.

A loader builds the model of the configuration and fills missing weights with random numbers. A
thousand layers over the weights of two would take the memory of a thousand. The bounds are wide:
some families share layers, some keep configurations of unsaved parts, and some pack weights.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.inspection.config import CONFIG
from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.safetensors import Header

MAX_POSITIONS = 1 << 24
"""Maximum number of positions. The loader builds position tables, some with the square of this
size.
"""

_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
_SHARED_LAYERS = "num_hidden_groups"
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "n_embed")
_EMBEDDING_WIDTHS = (*_WIDTHS, "embedding_size", "word_embed_proj_dim", "emb_dim", "d_embed")
_INNER = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner")
_VOCABULARY = ("vocab_size",)

_LAYER_TIMES, _LAYERS_MORE = 2, 8
_PART_TIMES, _PART_MORE = 4, 32
"""Bounds for the layers of a part's own configuration. That part need not have been saved."""
_NUMBERS_TIMES, _NUMBERS_MORE = 8, 1 << 22
_PACKED = 2
"""Numbers per byte for weights of four bits."""

_INDEX = re.compile(r"(?:^|\.)([0-9]{1,6})(?=\.)")


def refuse_claims(documents: Mapping[str, Json], headers: Iterable[Header]) -> None:
    """Raises `InspectionError` (`BAD_CONFIG`) for the configuration of a far larger model.

    Args:
        headers: the headers of the safetensors files.
    """
    config = documents.get(CONFIG)
    if not isinstance(config, dict):
        return
    header_list = list(headers)
    layers = 1 + max(_indices(header_list), default=-1)
    numbers = sum(max(header.parameters, header.data_bytes * _PACKED) for header in header_list)
    for name, part in _parts(config):
        times, more = (_PART_TIMES, _PART_MORE) if name else (_LAYER_TIMES, _LAYERS_MORE)
        if _SHARED_LAYERS not in part:
            _refuse_layers(name, part, layers, layers * times + more)
        for key, value in _numbers_of(part, _POSITIONS):
            if value > MAX_POSITIONS:
                raise _refusal(
                    name + key, value, f"at most {MAX_POSITIONS} positions are supported"
                )
    _refuse_tables(config, numbers)


def _refuse_layers(name: str, part: Mapping[str, Any], found: int, most: int) -> None:
    for key, value in _numbers_of(part, _LAYERS):
        if value > most:
            raise _refusal(name + key, value, f"the weight files hold {found} layers")


def _refuse_tables(config: Mapping[str, Any], numbers: int) -> None:
    """Rejects tables that alone would be much larger than all weights."""
    for keys, widths in ((_VOCABULARY, _EMBEDDING_WIDTHS), (_INNER, _WIDTHS)):
        width = min((value for _, value in _numbers_of(config, widths)), default=0)
        for key, value in _numbers_of(config, keys):
            if value * width > numbers * _NUMBERS_TIMES + _NUMBERS_MORE:
                why = f"with a width of {width}, which is more than the weight files hold in all"
                raise _refusal(key, value, why)


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the configuration and those of its parts, with the prefix of their keys."""
    yield "", config
    for key, value in config.items():
        if isinstance(value, dict):
            yield f"{key}.", value


def _numbers_of(config: Mapping[str, Any], keys: Iterable[str]) -> Iterator[tuple[str, int]]:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            yield key, value


def _indices(headers: Iterable[Header]) -> Iterator[int]:
    for header in headers:
        for name in header.tensors:
            for index in _INDEX.findall(name):
                yield int(index)


def _refusal(key: str, value: int, why: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_CONFIG,
        f"{CONFIG} says '{key}': {value}, but {why}. Upload the configuration that these weights "
        "were saved with.",
        CONFIG,
    )
