"""Fields of generation_config.json: their allowed values, and whether language models apply them.

The table omits fields that change no answer (caches, drafts, output formats). Their meaning:
https://huggingface.co/docs/transformers/main_classes/text_generation
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from stoker.wire.generation_request import MAX_STOPS
from stoker.wire.notices import Notice, unserved

FILE, CONFIG = "generation_config.json", "config.json"
_MOST_TOKENS = 1 << 20
_MOST_LISTED = 100_000
_STOP_CHARS = 512
_NESTED = ("decoder", "generator", "text_config")
"""Fields in which config.json may describe the part that writes text. The first one present is
used.
"""


class FieldError(Exception):
    """Raised for a value that its field does not allow. The message names the allowed values."""


@dataclass(frozen=True)
class Field:
    parse: Callable[[Any], Any]
    """Parses the value for use in code. Raises `FieldError`."""
    unserved: str = ""
    """Reason why language models here ignore it. Empty if they apply it."""
    off: tuple[Any, ...] = ()
    """Values without effect. Set only for fields that are ignored."""


def _number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise FieldError(f"a number from {low:g} to {high:g}")
        return float(value)

    return parse


def _count(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
        raise FieldError(f"a whole number from 0 to {_MOST_TOKENS}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError("true or false")
    return value


def _tokens(value: Any) -> list[int]:
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    if len(values) > _MOST_LISTED or not all(_is_token(token) for token in values):
        raise FieldError("a token or a list of tokens")
    return values


def _sequences(value: Any) -> list[list[int]]:
    values = cast("list[Any]", value if isinstance(value, list) else [None])
    if len(values) > _MOST_LISTED or not all(_is_filled_list(sequence) for sequence in values):
        raise FieldError("a list of lists of tokens")
    return [_tokens(sequence) for sequence in values]


def _biases(value: Any) -> dict[tuple[int, ...], float]:
    pairs = cast("list[Any]", value if isinstance(value, list) else [None])
    if not all(isinstance(pair, list) and len(cast("list[Any]", pair)) == 2 for pair in pairs):
        raise FieldError("a list of pairs, each of a list of tokens and a number")
    sequences = _sequences([sequence for sequence, _ in pairs])
    biases = [_number(-1e6, 1e6)(bias) for _, bias in pairs]
    return {tuple(sequence): bias for sequence, bias in zip(sequences, biases, strict=True)}


def _decay(value: Any) -> tuple[int, float]:
    pair = cast("list[Any]", value if isinstance(value, list) else [])
    if len(pair) != 2:
        raise FieldError("a pair of a number of tokens and a factor")
    return _count(pair[0]), _number(0.01, 100)(pair[1])


def _strings(value: Any) -> list[str]:
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    is_right = all(isinstance(text, str) and 0 < len(text) <= _STOP_CHARS for text in values)
    if not is_right or len(values) > MAX_STOPS:
        raise FieldError(f"up to {MAX_STOPS} texts of up to {_STOP_CHARS} characters each")
    return values


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError("an object")
    return cast("dict[str, Any]", value)


def _any(value: Any) -> Any:
    return value


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and value != []


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


_SHARE = _number(0, 1)
_PART = _number(1e-6, 1)
_CUTOFF = _number(0, 0.999999)
_NO_BEAMS = "answers are generated token by token, without beam search"
_NO_SUCH_SEARCH = "this search method is not supported"
FIELDS: Mapping[str, Field] = {
    "eos_token_id": Field(_tokens),
    "do_sample": Field(_flag),
    "temperature": Field(_number(0, 1e6)),
    "top_p": Field(_PART),
    "top_k": Field(_count),
    "min_p": Field(_SHARE),
    "top_h": Field(_PART),
    "typical_p": Field(_PART),
    "epsilon_cutoff": Field(_CUTOFF),
    "eta_cutoff": Field(_CUTOFF),
    "repetition_penalty": Field(_number(0.01, 100)),
    "encoder_repetition_penalty": Field(_number(0.01, 100)),
    "no_repeat_ngram_size": Field(_count),
    "encoder_no_repeat_ngram_size": Field(_count),
    "bad_words_ids": Field(_sequences),
    "sequence_bias": Field(_biases),
    "min_length": Field(_count),
    "min_new_tokens": Field(_count),
    "max_new_tokens": Field(_count),
    "forced_bos_token_id": Field(_tokens),
    "forced_eos_token_id": Field(_tokens),
    "remove_invalid_values": Field(_flag),
    "exponential_decay_length_penalty": Field(_decay),
    "suppress_tokens": Field(_tokens),
    "begin_suppress_tokens": Field(_tokens),
    "watermarking_config": Field(_object),
    "stop_strings": Field(_strings),
    "max_length": Field(
        _count,
        ("answers without 'max_tokens' continue until their end, or until the context is full"),
    ),
    "num_beams": Field(_any, _NO_BEAMS, (1,)),
    "num_return_sequences": Field(_any, "the request's 'n' is the number of answers", (1,)),
    "penalty_alpha": Field(_any, _NO_SUCH_SEARCH, (0,)),
    "dola_layers": Field(_any, _NO_SUCH_SEARCH),
    "constraints": Field(_any, _NO_SUCH_SEARCH),
    "force_words_ids": Field(_any, _NO_SUCH_SEARCH),
    "guidance_scale": Field(_any, "guidance by a second prompt is not supported", (1,)),
    "token_healing": Field(_any, "prompts are not shortened", (False,)),
    "max_time": Field(_any, "answers have no time limit"),
}


def of_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the generation fields of config.json, as transformers reads them if
    generation_config.json is missing. The outer fields take precedence over those of the part that
    writes text.
    """
    inner = next((config[name] for name in _NESTED if config.get(name)), None)
    nested = _given(cast("dict[str, Any]", inner if isinstance(inner, dict) else {}))
    both = {**nested, **_given(config)}
    return {name: both[name] for name in FIELDS if name in both}


def _given(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def parsed(given: Mapping[str, Any], file: str) -> tuple[dict[str, Any], list[Notice]]:
    """Returns the values of the fields that language models apply, and notices about the others.

    Args:
        given: fields as the file holds them. Null means that a field is absent.
        file: name of the file that holds them.
    """
    values: dict[str, Any] = {}
    notices: list[Notice] = []
    given = _given(given)
    for name, field in FIELDS.items():
        if name not in given or (value := given[name]) in field.off:
            continue
        try:
            values[name] = field.parse(value)
        except FieldError as error:
            notices.append(unserved(name, value, f"it must be {error}", file))
            continue
        if field.unserved:
            notices.append(unserved(name, value, field.unserved, file))
    return values, notices
