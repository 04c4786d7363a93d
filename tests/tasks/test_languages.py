"""Tokenizers that need a package of an optional extra, against transformers called directly."""

import base64
import hashlib
import json
import string
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support import speech
from tests.support.compare import equal
from tests.support.language import PUNCTUATION
from tests.support.local import Local
from tests.support.seq2seq import Direct

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.5,
}
XLM = {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "init_std": 0.5, "embed_init_std": 0.5}
ENGLISH = ["Clara's model isn't in Paris, is it?", "music!", "the river... and the tower; where"]
TWEETS = ["the music 🤗 of @clara", "https://paris.example is 😂", "hot"]
CHINESE = ["今天天气非常好。", "中国人", "今天"]
JAPANESE = ["私は東京に行きます。", "猫です", "東京都の猫は私に行く。"]


def written(folder: Path, words: list[str], name: str = "vocab.txt") -> dict[str, int]:
    """Saves a vocabulary as JSON or with one word per line. Returns the number of each word."""
    numbers = {word: at for at, word in enumerate(dict.fromkeys(words))}
    text = json.dumps(numbers) if name.endswith(".json") else "\n".join(numbers)
    folder.joinpath(name).write_text(text)
    return numbers


def ends_of_words(*special: str) -> list[str]:
    """Returns a vocabulary of letters and words for byte-pair tokenizers that mark the end of a
    word.
    """
    signs = [*string.ascii_letters, *PUNCTUATION]
    return [*special, *signs, *(f"{sign}</w>" for sign in signs), "th", "the</w>"]


def merged(folder: Path, name: str = "merges.txt") -> str:
    path = folder / name
    path.write_text("t h 10\nth e</w> 9\n")
    return str(path)


def saved(folder: Path, model: Any, tokenizer: Any) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def fsmt(folder: Path) -> None:
    words = written(folder, ends_of_words("<s>", "<pad>", "</s>", "<unk>"), "vocab-src.json")
    written(folder, list(words), "vocab-tgt.json")
    tokenizer = transformers.FSMTTokenizer(
        langs=["en", "de"],
        src_vocab_file=str(folder / "vocab-src.json"),
        tgt_vocab_file=str(folder / "vocab-tgt.json"),
        merges_file=merged(folder),
    )
    config = transformers.FSMTConfig(
        langs=["en", "de"],
        src_vocab_size=len(words),
        tgt_vocab_size=len(words),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        init_std=0.5,
    )
    saved(folder, transformers.FSMTForConditionalGeneration(config), tokenizer)


def roformer(folder: Path) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = written(folder, [*special, "今天", "天气", "非常", *"今天气非常好中国人。"])
    config = transformers.RoFormerConfig(vocab_size=len(words), num_labels=3, **SMALL)
    model = transformers.RoFormerForSequenceClassification(config)
    saved(folder, model, transformers.RoFormerTokenizer(vocab=words))
    folder.joinpath("tokenizer.json").unlink()


def xlm(folder: Path) -> None:
    _xlm(folder, "XLM")


def flaubert(folder: Path) -> None:
    _xlm(folder, "Flaubert")


def _xlm(folder: Path, name: str) -> None:
    library: Any = transformers
    special = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{at}>" for at in range(10))]
    words = written(folder, ends_of_words(*special), "vocab.json")
    tokenizer = getattr(library, f"{name}Tokenizer")(str(folder / "vocab.json"), merged(folder))
    config = getattr(library, f"{name}Config")(
        vocab_size=len(words), n_words=len(words), num_labels=3, n_langs=1, **XLM
    )
    saved(folder, getattr(library, f"{name}ForSequenceClassification")(config), tokenizer)


def biogpt(folder: Path) -> None:
    words = written(folder, ends_of_words("<s>", "<pad>", "</s>", "<unk>"), "vocab.json")
    tokenizer = transformers.BioGptTokenizer(str(folder / "vocab.json"), merged(folder))
    config = transformers.BioGptConfig(vocab_size=len(words), num_labels=3, **SMALL)
    saved(folder, transformers.BioGptForSequenceClassification(config), tokenizer)


def bertweet(folder: Path) -> None:
    signs = [*string.ascii_lowercase, *"@:_/.!?HTPURLSE"]
    words = [*signs, *(f"{sign}@@" for sign in signs), "the"]
    folder.joinpath("vocab.txt").write_text("\n".join(f"{word} 1" for word in words))
    tokenizer = transformers.BertweetTokenizer(
        str(folder / "vocab.txt"), merged(folder, "bpe.codes"), normalization=True
    )
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer), num_labels=3, pad_token_id=1, **SMALL
    )
    saved(folder, transformers.RobertaForSequenceClassification(config), tokenizer)


def tiktoken(folder: Path) -> None:
    tokens = [bytes([at]) for at in range(256)] + [b" t", b" th", b" the", b"in"]
    lines = (f"{base64.b64encode(token).decode()} {at}" for at, token in enumerate(tokens))
    folder.joinpath("tokenizer.model").write_text("\n".join(lines))
    folder.joinpath("tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64})
    )
    config = transformers.LlamaConfig(
        vocab_size=len(tokens), num_labels=3, pad_token_id=0, max_position_embeddings=64, **SMALL
    )
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)


def japanese(folder: Path, head: str = "SequenceClassification") -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    signs = "東京都行私猫はにのき"
    words = written(folder, [*special, "東京", "行き", "ます", "です", *signs, "##都", "。"])
    tokenizer = transformers.BertJapaneseTokenizer(
        str(folder / "vocab.txt"),
        word_tokenizer_type="mecab",
        mecab_kwargs={"mecab_dic": "ipadic"},
    )
    config = transformers.BertConfig(vocab_size=len(words), num_labels=3, **SMALL)
    saved(folder, getattr(transformers, f"BertFor{head}")(config), tokenizer)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Yields a function that builds a model with its package and serves it."""
    locals_: list[Local] = []

    def make(build: Callable[[Path], None], package: str, pipeline: str) -> Local:
        pytest.importorskip(package, reason=f"the tokenizer needs {package}")
        transformers.set_seed(0)
        build(tmp_path)
        locals_.append(Local(pipeline, tmp_path))
        return locals_[-1]

    yield make
    for local in locals_:
        local.close()


@pytest.mark.parametrize(
    ("build", "package", "texts"),
    [
        (roformer, "rjieba", CHINESE),
        (xlm, "sacremoses", ENGLISH),
        (flaubert, "sacremoses", ENGLISH),
        (biogpt, "sacremoses", ENGLISH),
        (bertweet, "emoji", TWEETS),
        (tiktoken, "tiktoken", ENGLISH),
        (japanese, "fugashi", JAPANESE),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_classifies_as_transformers(
    made: Any, tmp_path: Path, build: Any, package: str, texts: list[str]
) -> None:
    local = made(build, package, "text-classification")
    pipe: Any = transformers.pipeline("text-classification", model=str(tmp_path), device="cpu")
    expected = [pipe(text, top_k=None) for text in texts]
    for text, labels in zip(texts, expected, strict=True):
        equal(local.ask({"inputs": text}), labels)
    for answer in local.ask_together([{"inputs": texts}] * 2):
        equal(answer, expected)
    tokens = [pipe.tokenizer.tokenize(text) for text in texts]
    assert all(set(pieces) - {pipe.tokenizer.unk_token} for pieces in tokens), tokens


def test_nobody_keeps_a_copy_of_a_tiktoken_file(made: Any, tmp_path: Path) -> None:
    made(tiktoken, "tiktoken", "text-classification")
    name = hashlib.sha1(str(tmp_path / "tokenizer.model").encode()).hexdigest()
    assert not (Path(tempfile.gettempdir()) / "data-gym-cache" / name).exists()


def test_translates_as_transformers(made: Any, tmp_path: Path) -> None:
    local = made(fsmt, "sacremoses", "translation")
    direct = Direct(tmp_path)
    expected = [[{"translation_text": direct(text, max_new_tokens=12)}] for text in ENGLISH]
    for text, translation in zip(ENGLISH, expected, strict=True):
        assert local.ask({"inputs": text, "max_new_tokens": 12}) == translation
    body = {"inputs": ENGLISH, "max_new_tokens": 12}
    assert local.ask_together([body] * 2) == [expected] * 2


def test_tokens_without_places(made: Any, tmp_path: Path) -> None:
    """Entities have no character positions if the tokenizer does not report those of its tokens."""
    local = made(
        lambda folder: japanese(folder, "TokenClassification"), "fugashi", "token-classification"
    )
    pipe: Any = transformers.pipeline("token-classification", model=str(tmp_path), device="cpu")
    for text in JAPANESE:
        answer = local.ask({"inputs": text})
        assert {(entity["start"], entity["end"]) for entity in answer} == {(None, None)}
        equal(answer, pipe(text))


def test_tweets_name_their_emoji_as_the_model_learnt_them(made: Any) -> None:
    local = made(bertweet, "emoji", "text-classification")
    tokens = local.stages.tokenizer.tokenize("🤗 😂")
    assert " ".join(tokens).replace("@@ ", "") == ":hugging_face: :face_with_tears_of_joy:"


def test_other_letters_are_spoken_as_roman_ones(made: Any) -> None:
    def build(folder: Path) -> None:
        speech.vits(folder)
        settings = folder / "tokenizer_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "is_uroman": True}))

    stages = made(build, "uroman", "text-to-speech").stages
    tokens: Any = [stages._tokenizer(text)["input_ids"] for text in ("привет", "privet")]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) > stages._framing
