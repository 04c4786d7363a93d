"""A model's JSON files with changed structures are inspected alike in every spelling.

Inspection never rejects a tokenizer that the tokenizers library reads. It finds references to code
at any place in a document.
"""

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from stoker.inspection import FailureCode, Inspection, InspectionError, inspect
from stoker.inspection.documents import MAX_DEPTH, load_json, refuse_remote_code
from stoker.inspection.files import FileSet
from tests.fuzzing.support import fuzz, python_memory
from tests.inspection.builders import PIPELINES, MemoryFiles, config, dumps, model

REMOTE = ["auto_map", "custom_pipelines", "trust_remote_code"]
OTHERS = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        10**30,
        0.5,
        1e300,
        "",
        "a",
        "x" * 300,
        [],
        {},
        [None],
        [[]],
        {"": None},
        {"a": {"b": []}},
        "\x00",
        "é😀",
        float("nan"),
        float("inf"),
    ]
)
KEYS = st.sampled_from(
    [*REMOTE, "attn_implementation", "activation_fn", "vocab", "model", "type", "é"]
)
MEANT = st.sampled_from(
    [True, 1, "org/code", {"AutoModel": "x.Y"}, "a.b", "torch.nn.ReLU", "org/kernel"]
)
SIZES = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 10}


@cache
def tokenizers() -> list[Any]:
    """Returns one tokenizer of each kind as the library writes it, with the possible fields around
    its model.
    """
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2, "ab": 3, "auto_map": 4}
    kinds = [
        Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")),
        Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]")),
        Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="[UNK]")),
        Tokenizer(models.Unigram([("[UNK]", -1.0), ("a", -2.0), ("trust_remote_code", -3.0)], 0)),
    ]
    for tokenizer in kinds:
        tokenizer.add_special_tokens(["<s>", AddedToken("custom_pipelines", lstrip=True)])
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace("x", "y")]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Digits()]
        )
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.post_processor = processors.TemplateProcessing(
            "<s> $A", "<s> $A $B", [("<s>", 5)]
        )
        tokenizer.enable_truncation(8)
        tokenizer.enable_padding()
    return [json.loads(tokenizer.to_str()) for tokenizer in kinds]


def documents(draw: st.DrawFn) -> tuple[str, Any]:
    """Draws a file's name and a valid content."""
    settings = {
        "tokenizer_class": "BertTokenizer",
        "model_max_length": 10**30,
        "chat_template": "{{ x }}",
    }
    mapped = {"architectures": ["BertForTokenClassification"], "id2label": {"0": "A", "1": "B"}}
    return draw(
        st.sampled_from(
            [
                ("config.json", {"model_type": "bert", **mapped, **SIZES}),
                (
                    "generation_config.json",
                    {"eos_token_id": [1, 2], "do_sample": True, "top_p": 0.9},
                ),
                (
                    "tokenizer_config.json",
                    {**settings, "added_tokens_decoder": {"0": {"content": "[PAD]"}}},
                ),
                ("special_tokens_map.json", {"unk_token": {"content": "[UNK]", "lstrip": False}}),
                ("preprocessor_config.json", {"size": {"height": 2}, "image_mean": [0.5, 0.5]}),
                ("vocab.json", {"a": 0, "trust_remote_code": 1}),
                (
                    "modules.json",
                    [{"path": "", "type": "sentence_transformers.models.Transformer"}],
                ),
                *(("tokenizer.json", document) for document in tokenizers()),
            ]
        )
    )


def changed(draw: st.DrawFn, value: Any) -> Any:
    """Changes one value of a document, at any depth."""
    inner = (
        [*value.items()]
        if isinstance(value, dict)
        else [*enumerate(value)]
        if isinstance(value, list)
        else []
    )
    if inner and draw(st.integers(0, 3)):
        key, child = draw(st.sampled_from(inner))
        copy = value.copy()
        copy[key] = changed(draw, child)
        return copy
    kind = draw(st.sampled_from(["other", "other", "less", "more", "twice", "deep"]))
    if kind == "deep":
        deep = draw(st.sampled_from([1, 9, MAX_DEPTH - 1, MAX_DEPTH, 126, 200, 500]))
        for _ in range(deep):
            value = [value] if deep % 2 else {"a": value}
        return value
    if kind == "more" and isinstance(value, dict):
        return {**value, draw(KEYS): draw(MEANT | OTHERS)}
    if kind == "twice" and isinstance(value, list):
        return value + value
    if kind == "less" and inner:
        gone = draw(st.sampled_from(inner))[0]
        if isinstance(value, dict):
            return {key: child for key, child in value.items() if key != gone}
        return value[:gone] + value[gone + 1 :]
    return draw(OTHERS | MEANT)


def spelt(value: Any, *, other: bool) -> bytes:
    """Returns the document as JSON: as the libraries write it, or with other spaces, escapes and
    order.
    """
    if not other:
        return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "surrogatepass")
    text = json.dumps(_turned(value), separators=(" ,\r\n", "\t:"))
    # Written as an escape, which a search of the bytes would miss.
    return text.replace("_", "\\u005f").encode()


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(child) for key, child in reversed(value.items())}
    return [_turned(child) for child in value] if isinstance(value, list) else value


def looked_at(path: str, data: bytes) -> Inspection | tuple[FailureCode, str | None]:
    files = model(config_json=config(**SIZES)) | {path: data}
    source = MemoryFiles(files)
    size = sum(map(len, files.values()))
    try:
        with python_memory(100 * size + (4 << 20)):
            return inspect(source, None, PIPELINES)
    except InspectionError as error:
        return error.code, error.path
    finally:
        # Heads and tails determine the kind of a file. Then it is read once or twice.
        assert source.bytes_read <= 8 * size + 65_536


@st.composite
def changed_documents(draw: st.DrawFn) -> tuple[str, Any]:
    path, document = documents(draw)
    for _ in range(draw(st.integers(0, 3))):
        document = changed(draw, document)
    return path, document


@fuzz(changed_documents(), examples=100)
def test_looked_at_alike_in_every_spelling(case: tuple[str, Any]) -> bool:
    path, document = case
    inspected = looked_at(path, spelt(document, other=False))
    again = looked_at(path, spelt(document, other=True))
    if isinstance(inspected, Inspection):
        assert inspected == again
        assert not asks_for_code(path, document)
        assert depth(document) <= MAX_DEPTH
        return True
    assert not isinstance(again, Inspection)
    return False


@st.composite
def changed_tokenizers(draw: st.DrawFn) -> Any:
    document = draw(st.sampled_from(tokenizers()))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        document = changed(draw, document)
    return document


@fuzz(changed_tokenizers(), examples=100)
def test_what_tokenizers_reads_is_taken(document: Any) -> bool:
    """Inspection accepts each tokenizer that the library reads, except those with code. The library
    ignores unknown members.
    """
    data = spelt(document, other=False)
    try:
        Tokenizer.from_str(data.decode())
    except Exception:
        return False
    looked_through("tokenizer.json", document, data)
    return True


def looked_through(path: str, document: Any, data: bytes) -> None:
    files = FileSet(MemoryFiles({path: data}))
    try:
        loaded = load_json(files, path)
        refuse_remote_code(path, loaded)
    except InspectionError as error:
        assert asks_for_code(path, document) or depth(document) > MAX_DEPTH, error
    else:
        assert repr(loaded) == repr(_rounded(document))
        assert not asks_for_code(path, document)


def _rounded(value: Any) -> Any:
    """Converts integers of more than 64 bits to floats, as orjson does. No model has such
    integers.
    """
    if isinstance(value, dict):
        return {key: _rounded(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_rounded(child) for child in value]
    is_large = type(value) is int and not -(2**63) <= value < 2**64
    return float(value) if is_large else value


def asks_for_code(path: str, document: Any) -> bool:
    """Returns whether a document refers to code, by a search of the whole document. The values of
    `attn_implementation` and similar fields are not followed.
    """
    vocabulary = document.get("model") if isinstance(document, dict) else None
    vocabulary = vocabulary.get("vocab") if isinstance(vocabulary, dict) else None
    tokens = path == "vocab.json"

    def asks(value: Any) -> bool:
        if isinstance(value, list):
            return any(map(asks, value))
        if not isinstance(value, dict):
            return False
        is_tokens = tokens or (path == "tokenizer.json" and value is vocabulary)
        named = [value[key] for key in REMOTE if value.get(key)]
        kernel, activation = value.get("attn_implementation"), value.get("activation_fn")
        kernels = [*kernel.values()] if isinstance(kernel, dict) else [kernel]
        return (
            any(not (is_tokens and type(entry) is int) for entry in named)
            or any(isinstance(entry, str) and "/" in entry for entry in kernels)
            or (
                isinstance(activation, str)
                and "." in activation
                and not activation.startswith("torch.nn.")
            )
            or any(map(asks, value.values()))
        )

    return depth(document) < 900 and asks(document)


def depth(value: Any) -> int:
    """Returns how deep a value is nested, without recursion."""
    level, most = [value], 0
    while level:
        most += 1
        level = [
            inner
            for parent in level
            if isinstance(parent, dict | list)
            for inner in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(inner, dict | list)
        ]
    return most


def test_they_are_right_as_they_are() -> None:
    for document in tokenizers():
        assert isinstance(looked_at("tokenizer.json", dumps(document)), Inspection)
