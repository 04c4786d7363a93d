import time

import pytest

from stoker.models.stages.speech.sentences import LONGEST, pieces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes.", ["Yes."]),
        ("  One\n\ttwo  ", ["One two"]),
        (
            "This is the first sentence. And this is “the second one.” Is there a third? Yes.",
            [
                "This is the first sentence.",
                "And this is “the second one.”",
                "Is there a third? Yes.",
            ],
        ),
        ("I met Dr. Maria Schmidt there.", ["I met Dr. Maria Schmidt there."]),
        ("It costs 3.50 in the shops of www.example.org!", None),
        (
            "Here is a heading of a text\nand the text itself.",
            ["Here is a heading of a text", "and the text itself."],
        ),
        ("这是一个句子。" * 8, [" ".join(["这是一个句子。"] * 4)] * 2),
    ],
)
def test_sentences(text: str, expected: list[str] | None) -> None:
    assert pieces(text) == (expected or [text])


def test_long_sentences_are_cut_at_pauses() -> None:
    clause = "a clause of several words, "
    parts = pieces(clause * 20 + "and an end.")
    assert all(len(piece) <= LONGEST for piece in parts)
    assert all(piece.endswith(",") for piece in parts[:-1])
    assert " ".join(parts) == clause * 20 + "and an end."


def test_words_stay_whole() -> None:
    text = " ".join(["wordwithoutpause"] * 60)
    assert " ".join(pieces(text)) == text


def test_endless_words_are_cut() -> None:
    assert [len(piece) for piece in pieces("a" * 450)] == [200, 200, 50]


@pytest.mark.parametrize("text", ["." * 4096, ". " * 2048, "a\n" * 2048, "\n" * 4096, ".'" * 2048])
def test_hostile_texts_take_no_time(text: str) -> None:
    started = time.process_time()
    assert all(len(piece) <= LONGEST for piece in pieces(text))
    assert time.process_time() - started < 1
