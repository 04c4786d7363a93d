"""The elements of a JSON text are counted. Strings do not count, even if the text arrives in
arbitrary parts.
"""

import json
import random

import pytest

from stoker.base.errors import InvalidRequestError
from stoker.platform.web import structure
from stoker.platform.web.structure import MAX_CONTAINERS, MAX_ITEMS, MAX_MEMBERS, Structure

TRICKY = [
    "",
    '"',
    "\\",
    '\\"',
    '\\\\"[[[,,,:::{{{',
    "[" * 50,
    "ends with \\",
    "ü\ud83d\ude00 — \n\t/",
    ',"a":[{',
]


def counted(text: bytes, sizes: list[int]) -> tuple[int, int, int]:
    """Returns the number of containers, members and commas of a text that arrives in parts of these
    sizes.
    """
    counter = Structure()
    at = 0
    for size in sizes:
        counter._add(text[at : at + size])
        at += size
    counter._add(text[at:])
    return counter._containers, counter._members, counter._items


def really(value: object) -> tuple[int, int, int]:
    """Counts the same elements in a parsed value."""
    if isinstance(value, dict):
        inner = [really(item) for item in value.values()]
        outer = (1, len(value), max(0, len(value) - 1))
    elif isinstance(value, list):
        inner, outer = [really(item) for item in value], (1, 0, max(0, len(value) - 1))
    else:
        return 0, 0, 0
    sums = [sum(parts) for parts in zip(outer, *inner, strict=True)]
    return sums[0], sums[1], sums[2]


def anything(random_: random.Random, depth: int = 0) -> object:
    kind = random_.randrange(5 if depth < 5 else 3)
    if kind == 3:
        return [anything(random_, depth + 1) for _ in range(random_.randrange(6))]
    if kind == 4:
        names = random_.sample(TRICKY, random_.randrange(len(TRICKY)))
        return {name: anything(random_, depth + 1) for name in names}
    return random_.choice([None, True, -1.5e3, 7, *TRICKY])


class TestStructure:
    @pytest.mark.parametrize("seed", range(100))
    def test_counts_what_is_there(self, seed: int):
        random_ = random.Random(seed)
        value = [anything(random_) for _ in range(20)]
        text = json.dumps(value, ensure_ascii=random_.random() < 0.5).encode("utf-8", "replace")
        value = json.loads(text)
        sizes = [random_.randrange(1, 9) for _ in range(len(text) // 4)]
        assert counted(text, sizes) == counted(text, []) == really(value)

    @pytest.mark.parametrize(
        ("text", "most"),
        [
            ("[" + "[]," * MAX_CONTAINERS + "[]]", MAX_CONTAINERS),
            ("[" * (MAX_CONTAINERS + 1), MAX_CONTAINERS),
            ('{"a":' * (MAX_CONTAINERS + 1), MAX_CONTAINERS),
            ("{" + '"":0,' * MAX_MEMBERS + '"":0}', MAX_MEMBERS),
            ("[" + "0," * (MAX_ITEMS + 1) + "0]", MAX_ITEMS),
            ('["' + '","' * (MAX_ITEMS + 1) + '"]', MAX_ITEMS),
        ],
        ids=["lists", "open lists", "objects", "members", "numbers", "strings"],
    )
    def test_h2_too_much(self, text: str, most: int):
        with pytest.raises(InvalidRequestError, match=f"than the limit of {most}\\."):
            structure.check(text.encode())

    @pytest.mark.parametrize(
        "text",
        [
            "[" + "[]," * (MAX_CONTAINERS - 2) + "[]]",
            "{" + '"":0,' * (MAX_MEMBERS - 1) + '"":0}',
            "[" + "0," * MAX_ITEMS + "0]",
            '"' + "[{,:" * 1_000_000 + '"',
            '"' + '\\"[,' * 1_000_000 + '"',
        ],
        ids=["lists", "members", "numbers", "text", "text with quotes"],
    )
    def test_as_much_as_may_be(self, text: str):
        structure.check(text.encode())
