import importlib
import random
from typing import Any

import pytest
import transformers

from stoker.models.chat.answers.detokenizing import Detokenizer, Stops
from tests.llm.support import tokenizer
from tests.support import sentencepieces

# By its name: as an attribute of the package it may be a function of the same name.
library: Any = importlib.import_module("transformers.convert_slow_tokenizer")
_BYTES: dict[int, str] = library.bytes_to_unicode()

TEXTS = [
    "Plain text, with some words.",
    "😀 emoji 👩‍👩‍👧 and 日本語 and Zürich, naïve",
    "العربية עברית",
    " leading\n\n\tand trailing  ",
    "�",
]


@pytest.fixture(scope="module")
def tokens() -> Any:
    return tokenizer()


def encoded(tokens: Any, text: str) -> list[int]:
    return tokens(text, add_special_tokens=False)["input_ids"]


def byte(tokens: Any, value: int) -> int:
    """The token of a single byte, which is no text by itself."""
    return tokens.convert_tokens_to_ids(_BYTES[value])


def detokenizer(tokens: Any, hidden: frozenset[int] = frozenset()) -> Detokenizer:
    return Detokenizer(tokens.backend_tokenizer, hidden)


class TestDetokenizer:
    @pytest.mark.parametrize("text", TEXTS)
    def test_characters_appear_whole(self, text: str, tokens: Any) -> None:
        one = detokenizer(tokens)
        parts = [one.add([token]) for token in encoded(tokens, text)]
        assert "".join(parts) + one.finish() == text
        if "�" not in text:
            assert all("�" not in part for part in parts)

    @pytest.mark.parametrize("text", TEXTS)
    def test_several_tokens_at_once(self, text: str, tokens: Any) -> None:
        ids = encoded(tokens, text)
        for size in (2, 3, 7):
            one = detokenizer(tokens)
            parts = [one.add(ids[at : at + size]) for at in range(0, len(ids), size)]
            assert "".join(parts) + one.finish() == text

    def test_as_soon_as_they_are_complete(self, tokens: Any) -> None:
        one = detokenizer(tokens)
        ids = [byte(tokens, value) for value in "é😀".encode()]
        assert [one.add([token]) for token in ids] == ["", "é", "", "", "", "😀"]
        assert one.finish() == ""

    def test_what_never_becomes_a_character(self, tokens: Any) -> None:
        one = detokenizer(tokens)
        assert one.add([*encoded(tokens, "ab"), byte(tokens, 0xF0), byte(tokens, 0x9F)]) == "ab"
        assert one.finish() in ("�", "��")

    def test_hidden_tokens_are_no_text(self, tokens: Any) -> None:
        end = tokens.convert_tokens_to_ids("<|im_end|>")
        call = tokens.convert_tokens_to_ids("<tool_call>")
        ids = [end, *encoded(tokens, "a"), end, call, *encoded(tokens, "b"), end]
        one = detokenizer(tokens, frozenset([end]))
        assert one.add(ids) + one.finish() == "a<tool_call>b"

    def test_a_hidden_token_within_a_character(self, tokens: Any) -> None:
        end = tokens.convert_tokens_to_ids("<|im_end|>")
        first, second = (byte(tokens, value) for value in "é".encode())
        one = detokenizer(tokens, frozenset([end]))
        assert one.add([first, end, second]) == "é"

    @pytest.mark.parametrize("seed", range(20))
    def test_any_bytes(self, seed: int, tokens: Any) -> None:
        """A random model writes bytes that are no text: nothing raises, nothing else is lost."""
        chance = random.Random(seed)
        values: list[int] = []
        for _ in range(60):
            lead = chance.choice([0x61, 0x80, 0xC3, 0xE6, 0xF0, 0xFF, 0xA9])
            values += [lead] if chance.random() < 0.6 else [*"é日😀".encode()]
        one = detokenizer(tokens)
        text = "".join(one.add([byte(tokens, value)]) for value in values) + one.finish()
        expected = bytes(values).decode("utf-8", "replace")
        assert self.readable(text) == self.readable(expected)

    def readable(self, text: str) -> str:
        return text.replace("�", "")

    def test_a_long_run_of_bytes_that_are_no_text(self, tokens: Any) -> None:
        one = detokenizer(tokens)
        text = "".join(one.add([byte(tokens, 0x80)]) for _ in range(500))
        text += one.add(encoded(tokens, " after"))
        assert (text + one.finish()).endswith(" after")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pieces")
    family = sentencepieces.FAMILIES["llama"]
    folder.joinpath(family.file).write_bytes(sentencepieces.trained(family.training))
    return transformers.LlamaTokenizer.from_pretrained(folder)


class TestBytesBesideWords:
    """A SentencePiece tokenizer has tokens for the bytes of what it has no words for."""

    @pytest.mark.parametrize("seed", range(20))
    def test_any_bytes(self, seed: int, pieces: Any) -> None:
        chance = random.Random(seed)
        names: list[str] = []
        for _ in range(60):
            values = chance.choice([[0x41], [0x80], [0xC3], [0xFF], [*"é".encode()]])
            names += [f"<0x{value:02X}>" for value in values]
            names += chance.choice([[], [], ["▁tower"], ["wer"]])
        one = detokenizer(pieces)
        ids = pieces.convert_tokens_to_ids(names)
        text = "".join(one.add([token]) for token in ids) + one.finish()
        assert text.count("tower") == names.count("▁tower")
        assert text.count("wer") == names.count("wer") + names.count("▁tower")

    def test_characters_appear_whole(self, pieces: Any) -> None:
        one = detokenizer(pieces)
        text = "the tower 😀 is in paris, é"
        parts = [one.add([token]) for token in encoded(pieces, text)]
        assert "".join(parts) + one.finish() == text
        assert all("�" not in part for part in parts)

    def test_letters_told_before_bytes_that_are_no_text(self, pieces: Any) -> None:
        one = detokenizer(pieces)
        ids = pieces.convert_tokens_to_ids(["▁the", "<0x58>", "<0x8E>", "wer", "▁tower"])
        assert [one.add([token]) for token in ids] == ["the", "X", "", "�wer", " tower"]


def stopped(strings: list[str], pieces: list[str]) -> tuple[str, bool]:
    """What a client gets of a text that comes in pieces."""
    one = Stops(strings)
    given = ""
    for piece in pieces:
        text, found = one.add(piece)
        given += text
        if found:
            assert one.finish() == ""
            return given, True
    return given + one.finish(), False


class TestStops:
    @pytest.mark.parametrize(
        ("strings", "text", "expected"),
        [
            (["STOP"], "Hello STOP there", ("Hello ", True)),
            (["STOP"], "Hello STO", ("Hello STO", False)),
            (["aab"], "aaab", ("a", True)),
            (["aab"], "aaaaabaab", ("aaa", True)),
            (["abab"], "aababab", ("a", True)),
            (["\n\n"], "one\ntwo\n\nthree", ("one\ntwo", True)),
            (["there", "Hello"], "Oh Hello there", ("Oh ", True)),
            (["b", "abc"], "xabc", ("xa", True)),
            (["bc", "abcd"], "xabcd", ("xa", True)),
            (["bc", "abc"], "xabc", ("x", True)),
            (["日本"], "これは日本語", ("これは", True)),
            (["x"], "", ("", False)),
            ([], "anything", ("anything", False)),
            ([""], "anything", ("anything", False)),
        ],
    )
    def test_wherever_the_borders_are(
        self, strings: list[str], text: str, expected: tuple[str, bool]
    ) -> None:
        """The first that is complete ends the text; where two are at once, the longer."""
        for size in (1, 2, 3, max(len(text), 1)):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            assert stopped(strings, pieces) == expected, pieces

    @pytest.mark.parametrize("seed", range(20))
    def test_any_pieces_give_the_same(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(100):
            self.compare(chance)

    def compare(self, chance: random.Random) -> None:
        strings = [
            "".join(chance.choices("ab", k=chance.randint(1, 4))) + chance.choice(["", "c"])
            for _ in range(chance.randint(1, 3))
        ]
        text = "".join(chance.choices("abcd", weights=[5, 5, 2, 1], k=20))
        singly = stopped(strings, list(text))
        cuts = sorted(chance.sample(range(1, 20), 5))
        pieces = [text[at:end] for at, end in zip([0, *cuts], [*cuts, 20], strict=True)]
        assert stopped(strings, pieces) == singly
        assert singly[1] == any(one in text for one in strings)
        assert text.startswith(singly[0])
        assert not any(one in singly[0] for one in strings)

    def test_only_what_may_begin_a_stop_is_held_back(self) -> None:
        one = Stops(["</end>", "halt"])
        given = [one.add(piece)[0] for piece in ("Hello ", "<", "b> ", "</", "en", "x ha", "ha")]
        assert given == ["Hello ", "", "<b> ", "", "", "</enx ", "ha"]
        assert one.finish() == "ha"

    def test_nothing_is_held_back_without_stops(self) -> None:
        one = Stops([])
        assert one.add("any") == ("any", False)
        assert one.finish() == ""
