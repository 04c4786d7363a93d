"""Paraphrases for the sentence encoder from data/encoder.toml: wordings for each intent."""

from typing import NamedTuple

from tools.demo_models.data_file import DataFile

_DATA = DataFile("encoder")

SLOTS = _DATA.groups("slots")
TOPIC_WORDS = _DATA.groups("topic_words")
TOPIC_FRAMES = _DATA.entries("topic_frames")
HAND_WRITTEN = _DATA.read("hand_written", tuple[tuple[str, str, str], ...])
_PARAPHRASES = _DATA.read("paraphrases", dict[str, tuple[tuple[str, ...], ...]])


class Intent(NamedTuple):
    """Wordings of the same thing. All wordings may use the same slots."""

    topic: str
    forms: tuple[str, ...]


def intents() -> list[Intent]:
    """Returns all intents in the order of the data file."""
    return [Intent(topic, forms) for topic, intents in _PARAPHRASES.items() for forms in intents]
