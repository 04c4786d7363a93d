"""Forms and log probabilities with tokenizers that are not byte-level."""

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from stoker.models.chat.answers.detokenizing import Detokenizer
from stoker.models.chat.forms.grammar import Grammars, compiled
from stoker.models.llm import token_table
from stoker.models.llm.draws import Draws
from stoker.models.llm.errors import DrawError, FormError
from stoker.models.llm.sampling import draw
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import Guide, Sampling

library: Any = transformers

TEXTS = ["how do i bake bread", "the train is late", 'a b { } : , " 0 1 {"a": 1}', "né ü"] * 9
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
END = 2


def words(*, decoder: Any = None) -> Any:
    made: Any = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(TEXTS, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    return made


def word_pieces(*, cleanup: bool) -> Any:
    made: Any = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=cleanup)
    made.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(special_tokens=SPECIAL, vocab_size=90)
    )
    return made


def unigram(scheme: str = "always", *, decodes: bool = True) -> Any:
    made: Any = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    if decodes:
        made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(vocab_size=70, special_tokens=SPECIAL, unk_token="<unk>")
    made.train_from_iterator(TEXTS, trainer)
    return made


def suffix(*, bare: bool = True) -> Any:
    made: Any = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    texts = [*TEXTS, *(['{"a":1}x[]'] if bare else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=110, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    if bare:
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        texts = [f"{text}{mark}x" for text in texts for mark in '{}":,01a[]']
    made.train_from_iterator(texts, trainer)
    return made


def sentencepiece() -> Any:
    """Returns a tokenizer like Llama 2's.

    It has byte fallback, spaces as `▁`, and a decoder of several parts.
    """
    bytes_of = [f"<0x{number:02X}>" for number in range(256)]
    vocabulary = {token: place for place, token in enumerate([*SPECIAL, *bytes_of, "▁", "a", "▁a"])}
    made: Any = Tokenizer(
        models.BPE(vocabulary, [("▁", "a")], byte_fallback=True, unk_token="<unk>")
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(SPECIAL)
    return made


def replaced() -> Any:
    """Returns a tokenizer of characters, with `▁` for a space and no fallback."""
    characters = sorted({*"".join(TEXTS), "▁"} - {" "})
    vocabulary = {token: place for place, token in enumerate([*SPECIAL, *characters])}
    made: Any = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    made.add_special_tokens(SPECIAL)
    return made


KINDS: Mapping[str, tuple[Callable[[], Any], bool]] = {
    "words": (words, False),
    "word pieces": (lambda: word_pieces(cleanup=False), False),
    "word pieces, cleaned up": (lambda: word_pieces(cleanup=True), False),
    "unigram": (unigram, True),
    "unigram, first": (lambda: unigram("first"), True),
    "unigram, never": (lambda: unigram("never"), True),
    "unigram without a decoder": (lambda: unigram(decodes=False), False),
    "suffix": (suffix, True),
    "suffix without bare tokens": (lambda: suffix(bare=False), True),
    "sentencepiece": (sentencepiece, True),
    "replaced": (replaced, True),
}
"""Maps a name to the tokenizer's builder, and to True if texts are the pieces of its tokens."""


def wrapped(name: str) -> Any:
    return library.PreTrainedTokenizerFast(
        tokenizer_object=KINDS[name][0](), eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


@pytest.mark.parametrize("name", KINDS)
def test_bytes_are_those_of_the_text_or_unknown(name: str) -> None:
    tokenizer = wrapped(name)
    try:
        grammars = Grammars(tokenizer, len(tokenizer) + 3, [END])
    except FormError as error:
        assert not KINDS[name][1]
        assert "byte-level" in str(error)
        return
    assert KINDS[name][1]
    chance = random.Random(1)
    plain = [token for token in range(len(SPECIAL), len(tokenizer)) if is_text(tokenizer, token)]
    for _ in range(50):
        tokens = [chance.choice(plain) for _ in range(8)]
        reader = Detokenizer(tokenizer.backend_tokenizer, frozenset())
        text = reader.add(tokens) + reader.finish()
        whole = b"".join(grammars.bytes_of(token) for token in tokens)
        # Decoders leave out a space at the beginning or at the end.
        assert whole.decode("utf-8", "replace").strip(" ") == text.strip(" ")


_SELDOM = {"suffix without bare tokens"}
"""Kinds with tokens that end in a space. Few forms can be written without spaces."""


def is_text(tokenizer: Any, token: int) -> bool:
    """Returns False if the token is a part of a character."""
    name = tokenizer.convert_ids_to_tokens(token)
    return not name.startswith("<0x") or int(name[3:5], 16) < 128


FORMS: list[tuple[str, Any, Callable[[str], Any]]] = [
    ("choice", ["a", "b"], lambda text: text in ("a", "b")),
    ("regex", "a{2,4}b", lambda text: re.fullmatch("a{2,4}b", text)),
    ("json_schema", {"enum": [{"a": 1}]}, lambda text: json.loads(text) == {"a": 1}),
    ("json_object", None, lambda text: isinstance(json.loads(text), dict)),
]


@pytest.mark.parametrize(("kind", "value", "holds"), FORMS)
@pytest.mark.parametrize("name", [name for name, (_, is_joined) in KINDS.items() if is_joined])
def test_an_answer_has_the_form_or_is_refused(
    name: str, kind: Any, value: Any, holds: Callable[[str], Any]
) -> None:
    tokenizer = wrapped(name)
    size = len(tokenizer)
    grammars = Grammars(tokenizer, size, [END])
    finished = 0
    for seed in range(5):
        text = answer(tokenizer, grammars, Guide(kind=kind, field="f", value=value), seed)
        if text is not None:
            finished += 1
            assert holds(text), text
    if name not in _SELDOM and kind != "json_object":
        assert finished == 5


def answer(tokenizer: Any, grammars: Grammars, guide: Guide, seed: int) -> str | None:
    """Draws an answer from noise. Returns None if it is refused or does not end."""
    size = len(tokenizer)
    try:
        matcher = grammars.matcher(compiled(guide, "f"), "f")
    except InputError as error:
        assert "no token" in error.message
        return None
    noise = torch.Generator().manual_seed(seed)
    draws = Draws(Sampling(temperature=1.0, seed=seed), [], frozenset([END]), size, matcher)
    reader = Detokenizer(tokenizer.backend_tokenizer, frozenset([END]))
    text = ""
    for _ in range(120):
        logits = torch.randn(size, generator=noise)
        logits[END] += 4.0
        (drawn,) = draw(logits[None], [draws])
        if isinstance(drawn, DrawError):
            assert isinstance(drawn, FormError)
            return None
        if drawn[0] == END or matcher.consume(drawn[0]):
            text += reader.add([drawn[0]])
            return text + reader.finish()
        text += reader.add([drawn[0]])
    return None


def test_pieces_of_byte_fallback_are_not_asked_for() -> None:
    """llguidance knows the pieces of byte fallback by itself, including parts of characters."""
    assert token_table.pieces(wrapped("sentencepiece").backend_tokenizer) is None
