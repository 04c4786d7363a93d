"""Training content of `tiny-chat` from data/chat.toml: facts, ways to ask, and the questions that
it promises to answer.
"""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import all_forms

ADDED, TAKEN_FROM = 12, 15
"""Largest addend, and largest number to subtract from."""
NO_WEATHER = "I cannot look up the weather without a tool."
NO_TIME = "I cannot look up the time without a tool."
UNKNOWN = "I do not know."

_DATA = DataFile("chat")


def _forms(key: str) -> tuple[str, ...]:
    return all_forms(_DATA.entries(key))


STATED: Mapping[str, str] = _DATA.read("stated", dict[str, str])
"""Maps questions to answers, without a system message or with one that requests no style."""
STYLED = _DATA.read("styled", tuple[tuple[str, str, str], ...])
"""Tuples of system message, question and answer."""


class Topic(NamedTuple):
    """Facts of one kind and the ways to ask for them. `{…}` refers to a column of a row."""

    answer: str
    word: str
    """Column with the one-word answer."""
    ways: tuple[str, ...]
    unseen: tuple[str, ...]
    """Ways to ask that are not trained on."""
    more: str
    """Follow-up question about another row. Empty if a question of this kind has none."""
    rows: tuple[Mapping[str, str], ...]


class _TopicData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic of the data file. It has `columns` and `rows`, or `ring`, or `computed`."""

    answer: str
    word: str
    more: str
    ways: tuple[str, ...]
    unseen: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    ring: tuple[str, ...] = ()
    computed: str = ""

    def topic(self) -> Topic:
        """Returns the topic. Raises KeyError for an unknown name in `computed`."""
        ways = all_forms(self.ways)
        return Topic(self.answer, self.word, ways, self.unseen, self.more, self._all_rows())

    def _all_rows(self) -> tuple[Mapping[str, str], ...]:
        if self.computed:
            return _COMPUTED[self.computed]
        if self.ring:
            followers = zip(self.ring, [*self.ring[1:], self.ring[0]], strict=True)
            return tuple({"before": before, "after": after} for before, after in followers)
        return tuple(dict(zip(self.columns, row, strict=True)) for row in self.rows)


class _SmallTalk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    answered_as: str
    ways: tuple[str, ...]
    unseen: tuple[str, ...]


_COMPUTED: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "sums": tuple(
        {"a": str(a), "b": str(b), "c": str(a + b)}
        for a in range(ADDED + 1)
        for b in range(ADDED + 1)
    ),
    "differences": tuple(
        {"a": str(a), "b": str(b), "c": str(a - b)}
        for a in range(TAKEN_FROM + 1)
        for b in range(a + 1)
    ),
}

TOPICS: Mapping[str, Topic] = {
    name: data.topic() for name, data in _DATA.read("topics", dict[str, _TopicData]).items()
}

WRAPPED = _forms("wrapped")
"""Texts that may surround a question."""

SMALL_TALK = tuple(
    (all_forms(talk.ways), talk.unseen, STATED[talk.answered_as])
    for talk in _DATA.read("small_talk", tuple[_SmallTalk, ...])
)
"""Tuples of ways, ways not trained on, and answer."""

UNKNOWN_QUESTIONS = _DATA.entries("unknown_questions")
NOUNS = _DATA.entries("nouns")
ADJECTIVES = _DATA.entries("adjectives")

PLAIN_SYSTEMS = _forms("plain_systems")
STYLES: Mapping[str, tuple[str, ...]] = {
    style: all_forms(templates) for style, templates in _DATA.groups("styles").items()
}

NAME_TOLD = _forms("name_told")
NAME_ASKED = _forms("name_asked")
NAME_UNTOLD = "You have not told me your name."

REPEATS = _forms("repeats")
COUNTS = _forms("counts")
COUNTS_FROM_ONE = _forms("counts_from_one")
CONTINUES = _forms("continues")

JSON_WAYS = _forms("json_ways")
JSON_UNSEEN = _DATA.entries("json_unseen")

PLAIN_FACTS = _DATA.entries("plain_facts")
"""Topics with answers that are also learnt as plain text, to be continued without a template."""


def held_back(question: str) -> bool:
    """True if this combination of wording and fact is kept out of the training for measuring.

    Uses a stable hash, because Python salts `hash` differently in each process.
    """
    return question not in STATED and zlib.crc32(question.encode()) % 10 == 0
