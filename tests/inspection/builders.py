"""File sets for the tests of inspection."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

PIPELINES = {
    "token-classification": ["*ForTokenClassification"],
    "fill-mask": ["*ForMaskedLM"],
    "text-classification": ["*ForSequenceClassification"],
    "image-classification": ["*ForImageClassification"],
    "feature-extraction": ["*Model", "*ForMaskedLM"],
    "text-generation": ["*ForCausalLM"],
    "summarization": ["*ForConditionalGeneration"],
    "translation": ["*ForConditionalGeneration"],
}


class MemoryFiles:
    """A file set in memory that counts the bytes read from it."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.bytes_read = 0

    def sizes(self) -> Mapping[str, int]:
        return {path: len(data) for path, data in self.files.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.bytes_read += length
        return self.files[path][offset : offset + length]


class FolderFiles:
    """A file set in a folder that counts the bytes read from it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bytes_read = 0

    def sizes(self) -> Mapping[str, int]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.stat().st_size for path in files}

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.bytes_read += length
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read(length)


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def raw_safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Returns a safetensors file with any header, however wrong: an object to dump, a string or
    bytes.
    """
    text = header if isinstance(header, str | bytes) else json.dumps(header)
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def weights(**shapes: tuple[int, ...]) -> bytes:
    """Returns a safetensors file with float32 zeros of these shapes, made by the library."""
    chosen = shapes or {"embeddings": (10, 4), "bias": (4,)}
    return save({name: np.zeros(shape, np.float32) for name, shape in chosen.items()})


def config(architecture: str = "BertForTokenClassification", **more: Any) -> bytes:
    return dumps({"architectures": [architecture], "model_type": "bert", **more})


def model(**changes: bytes | None) -> dict[str, bytes]:
    """Returns a small, valid model, with files added, replaced or (None) left out.

    A keyword stands for a path: `config_json` for `config.json`.
    """
    names = {
        "config_json": "config.json",
        "tokenizer_json": "tokenizer.json",
        "model_safetensors": "model.safetensors",
    }
    files: dict[str, bytes | None] = {
        "config_json": config(),
        "tokenizer_json": dumps({"model": {"type": "WordPiece", "vocab": {"[PAD]": 0}}}),
        "model_safetensors": weights(),
    }
    files.update(changes)
    return {names[name]: data for name, data in files.items() if data is not None}


def model_with(path: str, data: bytes) -> dict[str, bytes]:
    """Returns a small, valid model with one file added or replaced."""
    return {**model(), path: data}


def sharded(
    shards: Mapping[str, Mapping[str, tuple[int, ...]]],
    weight_map: Mapping[str, Any] | None = None,
    total_size: int | None = None,
) -> dict[str, bytes]:
    """Returns a model in shards: maps each shard to the shapes of its tensors. The index is right
    unless passed.
    """
    right = {name: shard for shard, shapes in shards.items() for name in shapes}
    index: dict[str, Any] = {"weight_map": right if weight_map is None else weight_map}
    if total_size is not None:
        index["metadata"] = {"total_size": total_size}
    return {
        **model(model_safetensors=None),
        **{shard: weights(**shapes) for shard, shapes in shards.items()},
        "model.safetensors.index.json": dumps(index),
    }


def sentence(*modules: tuple[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Returns the files that sentence-transformers adds: a transformer and these modules, each with
    its settings.

    Without modules, the mean over the tokens is used.
    """
    listed = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    files: dict[str, bytes] = {}
    for number, (kind, settings) in enumerate(modules or [("Pooling", {})], start=1):
        path = f"{number}_{kind}"
        listed.append({"path": path, "type": f"sentence_transformers.models.{kind}"})
        files[f"{path}/config.json"] = dumps(settings)
        if kind in {"Dense", "LayerNorm", "WeightedLayerPooling"}:
            files[f"{path}/model.safetensors"] = weights()
    return {"modules.json": dumps(listed), **files}


def sentencepiece(pieces: int = 3) -> bytes:
    """Returns a SentencePiece ModelProto with a trainer_spec and a normalizer_spec."""
    piece = b"\x0a\x03abc\x15\x00\x00\x80\xbf\x18\x01"
    specs = b"\x12\x04\x0a\x02xx\x1a\x02\x0a\x00"
    return (b"\x0a" + bytes([len(piece)]) + piece) * pieces + specs


GGUF_FIELDS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.block_count": 1,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.token_type": [1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages }}",
}
GGUF_TENSORS: dict[str, tuple[tuple[int, ...], int]] = {
    "token_embd.weight": ((8, 3), 0),
    "blk.0.attn_q.weight": ((8, 8), 1),
    "output_norm.weight": ((5,), 0),
}
_GGUF_BYTES = {0: 4, 1: 2, 8: 34 / 32, 12: 144 / 256}


def gguf(
    version: int = 3,
    tensors: int | None = None,
    metadata: int | None = None,
    *,
    fields: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[tuple[int, ...], int]] | None = None,
    offsets: Mapping[str, int] | None = None,
    alignment: int = 32,
    padding: int = 0,
) -> bytes:
    """Returns a small, valid GGUF llama, except for the requested deviations.

    Args:
        tensors: number of tensors that the header claims.
        metadata: number of metadata fields that the header claims.
        fields: metadata added, replaced or (None) left out. Bytes contain type and value.
        shapes: replaces all tensors: dimensions, the fastest-moving first, and type.
        offsets: replaces the right offsets of tensors.
        padding: number of surplus bytes at the end, or of missing bytes if negative.
    """
    chosen = {**GGUF_FIELDS, **(fields or {})}
    chosen = {key: value for key, value in chosen.items() if value is not None}
    table = dict(GGUF_TENSORS if shapes is None else shapes)
    counts = (
        len(table) if tensors is None else tensors,
        len(chosen) if metadata is None else metadata,
    )
    header = struct.pack("<4sIQQ", b"GGUF", version, *counts)
    header += b"".join(gguf_string(key) + gguf_value(value) for key, value in chosen.items())
    end = 0
    for name, (shape, kind) in table.items():
        begin = -(-end // alignment) * alignment
        end = begin + int(np.prod(shape) * _GGUF_BYTES.get(kind, 1))
        header += gguf_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", kind, (offsets or {}).get(name, begin))
    return header + bytes(-len(header) % alignment + end + padding)


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_value(value: Any) -> bytes:
    """Encodes a type and a value of it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        items = [gguf_value(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", 4)
        return (
            struct.pack("<I", 9)
            + kind
            + struct.pack("<Q", len(items))
            + b"".join(item[4:] for item in items)
        )
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return (
        struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    )
