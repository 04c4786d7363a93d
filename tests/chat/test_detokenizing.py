import importlib
import random
from typing import Any

import pytest
import transformers

from stoker.models.chat.answers.detokenizing import Detokenizer, Stops
from tests.llm.support import tokenizer
from tests.support import sentencepieces

# Imported by name: the package's attribute may be a function of the same name.
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
    """Returns the token of a single byte. The byte alone is not text."""
    return tokens.convert_tokens_to_ids(_BYTES[value])


def detokenizer(tokens: Any, hidden: frozenset[int] = frozenset()) -> Detokenizer:
    return Detokenizer(tokens.backend_tokenizer, hidden)


class TestDetokenizer:
    @pytest.mark.parametrize("text", TEXTS)
    def test_characters_appear_whole(self, text: str, tokens: Any) -> None:
        decoder = detokenizer(tokens)
        parts = [decoder.add([token]) for token in encoded(tokens, text)]
        assert "".join(parts) + decoder.finish() == text
        if "�" not in text:
            assert all("�" not in part for part in parts)

    @pytest.mark.parametrize("text", TEXTS)
    def test_several_tokens_at_once(self, text: str, tokens: Any) -> None:
        ids = encoded(tokens, text)
        for size in (2, 3, 7):
            decoder = detokenizer(tokens)
            parts = [decoder.add(ids[at : at + size]) for at in range(0, len(ids), size)]
            assert "".join(parts) + decoder.finish() == text

    def test_as_soon_as_they_are_complete(self, tokens: Any) -> None:
        decoder = detokenizer(tokens)
        ids = [byte(tokens, value) for value in "é😀".encode()]
        assert [decoder.add([token]) for token in ids] == ["", "é", "", "", "", "😀"]
        assert decoder.finish() == ""

    def test_what_never_becomes_a_character(self, tokens: Any) -> None:
        decoder = detokenizer(tokens)
        assert decoder.add([*encoded(tokens, "ab"), byte(tokens, 0xF0), byte(tokens, 0x9F)]) == "ab"
        assert decoder.finish() in ("�", "��")

    def test_hidden_tokens_are_no_text(self, tokens: Any) -> None:
        end = tokens.convert_tokens_to_ids("<|im_end|>")
        call = tokens.convert_tokens_to_ids("<tool_call>")
        ids = [end, *encoded(tokens, "a"), end, call, *encoded(tokens, "b"), end]
        decoder = detokenizer(tokens, frozenset([end]))
        assert decoder.add(ids) + decoder.finish() == "a<tool_call>b"

    def test_a_hidden_token_within_a_character(self, tokens: Any) -> None:
        end = tokens.convert_tokens_to_ids("<|im_end|>")
        first, second = (byte(tokens, value) for value in "é".encode())
        decoder = detokenizer(tokens, frozenset([end]))
        assert decoder.add([first, end, second]) == "é"

    @pytest.mark.parametrize("seed", range(20))
    def test_any_bytes(self, seed: int, tokens: Any) -> None:
        """Invalid bytes from a random model raise nothing, and no other text is lost."""
        chance = random.Random(seed)
        values: list[int] = []
        for _ in range(60):
            lead = chance.choice([0x61, 0x80, 0xC3, 0xE6, 0xF0, 0xFF, 0xA9])
            values += [lead] if chance.random() < 0.6 else [*"é日😀".encode()]
        decoder = detokenizer(tokens)
        text = "".join(decoder.add([byte(tokens, value)]) for value in values) + decoder.finish()
        expected = bytes(values).decode("utf-8", "replace")
        assert self.readable(text) == self.readable(expected)

    def readable(self, text: str) -> str:
        return text.replace("�", "")

    def test_a_long_run_of_bytes_that_are_no_text(self, tokens: Any) -> None:
        decoder = detokenizer(tokens)
        text = "".join(decoder.add([byte(tokens, 0x80)]) for _ in range(500))
        text += decoder.add(encoded(tokens, " after"))
        assert (text + decoder.finish()).endswith(" after")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pieces")
    family = sentencepieces.FAMILIES["llama"]
    folder.joinpath(family.file).write_bytes(sentencepieces.trained(family.training))
    return transformers.LlamaTokenizer.from_pretrained(folder)


class TestBytesBesideWords:
    """A SentencePiece tokenizer has byte tokens for text that its words do not cover."""

    @pytest.mark.parametrize("seed", range(20))
    def test_any_bytes(self, seed: int, pieces: Any) -> None:
        chance = random.Random(seed)
        names: list[str] = []
        for _ in range(60):
            values = chance.choice([[0x41], [0x80], [0xC3], [0xFF], [*"é".encode()]])
            names += [f"<0x{value:02X}>" for value in values]
            names += chance.choice([[], [], ["▁tower"], ["wer"]])
        decoder = detokenizer(pieces)
        ids = pieces.convert_tokens_to_ids(names)
        text = "".join(decoder.add([token]) for token in ids) + decoder.finish()
        assert text.count("tower") == names.count("▁tower")
        assert text.count("wer") == names.count("wer") + names.count("▁tower")

    def test_characters_appear_whole(self, pieces: Any) -> None:
        decoder = detokenizer(pieces)
        text = "the tower 😀 is in paris, é"
        parts = [decoder.add([token]) for token in encoded(pieces, text)]
        assert "".join(parts) + decoder.finish() == text
        assert all("�" not in part for part in parts)

    def test_letters_told_before_bytes_that_are_no_text(self, pieces: Any) -> None:
        decoder = detokenizer(pieces)
        ids = pieces.convert_tokens_to_ids(["▁the", "<0x58>", "<0x8E>", "wer", "▁tower"])
        assert [decoder.add([token]) for token in ids] == ["the", "X", "", "�wer", " tower"]


def stopped(strings: list[str], pieces: list[str]) -> tuple[str, bool]:
    """Returns the streamed text for a client, and True if a stop string ended it."""
    stops = Stops(strings)
    emitted = ""
    for piece in pieces:
        text, ended = stops.add(piece)
        emitted += text
        if ended:
            assert stops.finish() == ""
            return emitted, True
    return emitted + stops.finish(), False


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
        """The first complete stop string ends the text. The longer of two wins."""
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
        assert singly[1] == any(string in text for string in strings)
        assert text.startswith(singly[0])
        assert not any(string in singly[0] for string in strings)

    def test_only_what_may_begin_a_stop_is_held_back(self) -> None:
        stops = Stops(["</end>", "halt"])
        emitted = [
            stops.add(piece)[0] for piece in ("Hello ", "<", "b> ", "</", "en", "x ha", "ha")
        ]
        assert emitted == ["Hello ", "", "<b> ", "", "", "</enx ", "ha"]
        assert stops.finish() == "ha"

    def test_nothing_is_held_back_without_stops(self) -> None:
        stops = Stops([])
        assert stops.add("any") == ("any", False)
        assert stops.finish() == ""
