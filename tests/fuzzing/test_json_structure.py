"""The structure of a JSON text is counted as a parser would, for any division into pieces."""

import json
from typing import Any

from hypothesis import strategies as st

from stoker.base.errors import StokerError
from stoker.inference.json_bodies import CUT_BYTES, Cutter
from stoker.platform.web.structure import Structure
from tests.fuzzing.support import cuts, fuzz, pieces, python_memory

TRICKY = st.sampled_from(
    ["", '"', "\\", '\\"', '\\\\"[,:{', "[" * 9, '{"a":[1', "é😀", "\x7f", "a\\"]
)
KEYS = TRICKY | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | KEYS
LONG = st.sampled_from(
    ["x" * CUT_BYTES, '\\"' * CUT_BYTES, "é" * CUT_BYTES, [0.5] * CUT_BYTES, [-1] * CUT_BYTES]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=25,
)
SPLICES = st.sampled_from([*'"\\[]{},:u0 ', "\\u", "\\\\", '\\"', "//", "NaN", "\0", '":[', "\n"])


def spelt(draw: st.DrawFn, value: Any) -> str:
    """Returns a value as JSON in one of its spellings."""
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, "\t"])),
        separators=draw(st.sampled_from([None, (",", ":"), (" ,\r\n", " : ")])),
    )
    # Adds an unnecessary escape.
    return text.replace("a", "\\u0061").replace("[", "[ ") if draw(st.booleans()) else text


@st.composite
def texts(draw: st.DrawFn, values: st.SearchStrategy[Any] = VALUES) -> list[bytes]:
    """Draws a JSON text in pieces. The structure of every second text is damaged."""
    text = spelt(draw, draw(values))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        marks = [at for at, character in enumerate(text[:4000]) if character in '"\\[]{},:'] or [0]
        at = draw(st.sampled_from(marks)) + draw(st.integers(0, 1))
        text = text[:at] + draw(SPLICES) + text[at + draw(st.integers(0, 2)) :]
    if draw(st.integers(0, 9)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    data = text.encode("utf-8", "surrogatepass")
    # A cut at every position would create as many objects as bytes.
    where = cuts(len(data)) if len(data) < 1000 else st.lists(st.integers(0, len(data)), max_size=9)
    return pieces(data, sorted(draw(where)))


def parsed(data: bytes) -> tuple[bool, Any]:
    """Returns whether Python's own parser accepts the text, and the value with all members of its
    objects.
    """
    try:
        return True, json.loads(data.decode(), object_pairs_hook=lambda pairs: ("object", pairs))
    except ValueError:
        return False, None


def consists(value: Any) -> tuple[int, int, int]:
    """Counts containers (lists and objects), members and commas."""
    if isinstance(value, tuple):
        inner_counts = [consists(one) for _, one in value[1]]
        own_counts = (1, len(value[1]), max(0, len(value[1]) - 1))
    elif isinstance(value, list):
        inner_counts, own_counts = [consists(one) for one in value], (1, 0, max(0, len(value) - 1))
    else:
        return 0, 0, 0
    one, two, three = (sum(parts) for parts in zip(own_counts, *inner_counts, strict=True))
    return one, two, three


@fuzz(texts(), examples=300)
def test_counted_as_parsed(parts: list[bytes]) -> bool:
    data = b"".join(parts)
    counted, whole = Structure(), Structure()
    for part in parts:
        counted.add(part)
    whole.add(data)
    counts = (counted._containers, counted._members, counted._items)
    assert counts == (whole._containers, whole._members, whole._items)
    is_json, value = parsed(data)
    if is_json:
        assert counts == consists(value)
    return is_json


LONG_BODIES = st.dictionaries(KEYS, VALUES | LONG | st.lists(LONG | LEAVES, max_size=3), max_size=4)


@fuzz(texts(LONG_BODIES), examples=100)
def test_what_was_taken_out_is_put_back(parts: list[bytes]) -> bool:
    data = b"".join(parts)
    is_json, _value = parsed(data)
    cutter = Cutter(1 << 20)
    with python_memory(8 * len(data) + (1 << 20)):
        try:
            for part in parts:
                cutter.add(part)
            shortened = bytes(cutter.end())
        except StokerError:
            assert not is_json
            return False
    # Inside strings and lists, the text that is parsed at once contains nothing long.
    if is_json:
        assert all(len(string) < CUT_BYTES for string in strings(parsed(shortened)[1]))
    back = bytes(cutter.put_back())
    assert back == data if is_json else parsed(back) == (False, None)
    return is_json


def strings(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [string for key, inner in value[1] for string in (key, *strings(inner))]
    if isinstance(value, list):
        return [string for inner in value for string in strings(inner)]
    return [value] if isinstance(value, str) else []
