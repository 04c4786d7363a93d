"""Compares an answer with its expectations and describes the differences in words.

This module compiles a caller's schema and applies it to a model's answer. This native code may not
end, and lets no other thread run. Only `stoker.workloads.evaluation.checks.process` calls it, in a
separate process.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jsonschema_rs

from stoker.workloads.evaluation.checks.schema_bounds import excess
from stoker.workloads.evaluation.replay.comparison import (
    EACH_TIME,
    UNCOMPARED,
    cosine,
    is_number,
    label_of,
)

TOLERANCE = 1e-4
_SHOWN_CHARS = 200


def why_no_schema(schema: dict[str, Any]) -> str:
    """Returns why a schema cannot be used, as the rest of a sentence. Returns an empty text if it
    can.
    """
    if why := excess(schema):
        return why
    try:
        _validator(schema)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        return f"is not a valid JSON schema: {_shown(str(error))}"
    return ""


def failing(expect: Mapping[str, Any], content: bytes, *, is_written: bool) -> str:
    """Returns how an answer with status 200 differs from its expectations. Returns an empty text if
    it does not.

    Args:
        expect: an `Expect` (see schemas.py) as JSON, without the fields that are not set.
        is_written: whether a language model wrote the answer, which then has a text.
    """
    try:
        answer = json.loads(content)
    except ValueError:
        # Not JSON: a text or a file.
        answer = content.decode(errors="replace")
    texts = list(_texts(answer))
    written = next(iter(texts), "") if is_written else None
    cosine_min, schema = expect.get("cosine_min"), expect.get("json_schema")
    top_label, contained = expect.get("top_label"), expect.get("contains")
    differences = [
        _unequal(expect["equal"], answer, written) if "equal" in expect else "",
        _other_label(top_label, answer) if top_label is not None else "",
        _lacking(contained, texts) if contained is not None else "",
        _far(cosine_min["vector"], cosine_min["min"], answer) if cosine_min else "",
        _unfit(schema, answer, written) if schema is not None else "",
    ]
    return " ".join(difference for difference in differences if difference)


def _unequal(expected: Any, answer: Any, written: str | None) -> str:
    actual = written if written is not None and isinstance(expected, str) else answer
    if _is_equal(expected, actual):
        return ""
    return f"The answer is {_shown(json.dumps(actual))} and not {_shown(json.dumps(expected))}."


def _is_equal(one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        names = (ours.keys() | theirs.keys()) - EACH_TIME
        return all(
            name in ours and name in theirs and _is_equal(ours[name], theirs[name])
            for name in names
        )
    if isinstance(one, list) and isinstance(other, list):
        pairs = cast("tuple[list[Any], list[Any]]", (one, other))
        return len(pairs[0]) == len(pairs[1]) and all(map(_is_equal, *pairs))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _other_label(expected: str, answer: Any) -> str:
    labels = _labels(answer)
    if not labels:
        return "The answer has no labels."
    top = max(labels, key=lambda labelled: labelled[1])[0]
    return "" if top == expected else f"The top label is '{_shown(top)}' and not '{expected}'."


def _labels(answer: Any) -> list[tuple[str, float]]:
    """Returns labels and scores of the answer, or of its first input if it has several."""
    if not isinstance(answer, list):
        return []
    entries = cast("list[Any]", answer)
    if entries and isinstance(entries[0], list):
        return _labels(entries[0])
    named = ((label_of(entry), entry) for entry in entries)
    return [
        (label, float(entry["score"]))
        for label, entry in named
        if label is not None and is_number(entry.get("score"))
    ]


def _lacking(expected: str, texts: Sequence[str]) -> str:
    if any(expected in text for text in texts):
        return ""
    shown = _shown(" … ".join(texts))
    return f"No text of the answer contains '{_shown(expected)}': {shown}"


def _texts(answer: Any) -> Iterator[str]:
    """Yields the texts of an answer in order, without ids and other metadata."""
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, list):
        for item in cast("list[Any]", answer):
            yield from _texts(item)
    elif isinstance(answer, dict):
        for name, value in cast("dict[str, Any]", answer).items():
            if name not in UNCOMPARED:
                yield from _texts(value)


def _far(expected: list[float], least: float, answer: Any) -> str:
    vector = _vector(answer)
    if vector is None:
        return "The answer has no vector."
    if len(vector) != len(expected):
        return f"The vector has {len(vector)} numbers and not {len(expected)}."
    similarity = cosine(vector, expected)
    return "" if similarity >= least else f"The cosine is {similarity:.6f}, below {least:g}."


def _vector(answer: Any) -> list[float] | None:
    """Returns the first list of numbers."""
    if isinstance(answer, list):
        items = cast("list[Any]", answer)
        if len(items) > 1 and all(map(is_number, items)):
            return items
        return next(filter(None, map(_vector, items)), None)
    if isinstance(answer, dict):
        values = cast("dict[str, Any]", answer).values()
        return next(filter(None, map(_vector, values)), None)
    return None


def _unfit(schema: dict[str, Any], answer: Any, written: str | None) -> str:
    if written is not None:
        try:
            answer = json.loads(written)
        except ValueError:
            return f"The text is not JSON: {_shown(written)}"
    error = next(iter(_validator(schema).iter_errors(answer)), None)
    if error is None:
        return ""
    place = "/".join(map(str, error.instance_path)) or "the whole"
    return f"The answer does not match the schema, at {_shown(place)}: {_shown(error.message)}"


def _validator(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.Draft202012Validator(schema, retriever=_refused)


def _refused(uri: str) -> Any:
    raise ValueError(
        f"a schema must not refer to other documents, but this one refers to {_shown(uri)}"
    )


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
