"""Identifies the model of a GGUF file and checks whether it can be served.

Files of more kinds would load. The kinds listed here produce the model that they were made from,
which tests compare.
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.gguf import GgufArray, GgufHeader, Value, bad_gguf


@dataclass(frozen=True)
class _Architecture:
    """Architecture that can be served: transformers' class and name of the kind, and its optional
    features.
    """

    name: str
    model_type: str
    tensors: str = ""
    """Pattern of the names of a layer's tensors that a llama does not have."""
    scalings: frozenset[str] = frozenset({"none", "linear"})


_YARN = frozenset({"none", "linear", "yarn"})
_GEMMA = "|post_attention_norm|post_ffw_norm"
# By `general.architecture`. Most models of Mistral and SmolLM are llamas, too.
ARCHITECTURES = {
    "gemma2": _Architecture("Gemma2ForCausalLM", "gemma2", _GEMMA),
    "gemma3": _Architecture("Gemma3ForCausalLM", "gemma3_text", f"|attn_[qk]_norm{_GEMMA}"),
    "llama": _Architecture("LlamaForCausalLM", "llama", scalings=_YARN),
    "phi3": _Architecture("Phi3ForCausalLM", "phi3", "|attn_qkv"),
    "qwen2": _Architecture("Qwen2ForCausalLM", "qwen2", scalings=_YARN),
    "qwen3": _Architecture("Qwen3ForCausalLM", "qwen3", "|attn_[qk]_norm", _YARN),
}
TOKENIZER = "tokenizer.json"

# llama_ftype of https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h, for mixtures of
# several types. Their names say more than the type of most tensors.
_FILE_TYPES = {
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 21: "Q2_K_S", 22: "IQ3_XS", 27: "IQ3_M", 29: "IQ2_M",
}  # fmt: skip
# Keys that follow the architecture's name: integers up to a limit. Every model needs the first
# five.
_SIZES = {
    "context_length": 1 << 26,
    "embedding_length": 1 << 20,
    "block_count": 10_000,
    "feed_forward_length": 1 << 24,
    "attention.head_count": 1 << 16,
    "attention.head_count_kv": 1 << 16,
    "attention.key_length": 1 << 16,
    "rope.dimension_count": 1 << 16,
    "attention.sliding_window": 1 << 26,
}
_OPTIONAL = frozenset(list(_SIZES)[5:])
_SCALING_KEYS = frozenset({"type", "factor", "original_context_length", "finetuned"})
# `tokenizer.ggml.pre` of byte-level tokenizers that transformers splits like the original ones.
PRE_TOKENIZERS = frozenset(
    {
        "dbrx",
        "deepseek-r1-qwen",
        "falcon3",
        "gpt-2",
        "gpt-4o",
        "llama-bpe",
        "llama-v3",
        "llama3",
        "llama4",
        "pixtral",
        "qwen2",
        "qwen35",
        "smaug-bpe",
        "tekken",
    }
)
_FLOATS = (
    "attention.layer_norm_rms_epsilon",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.factor",
)
_SAMPLING = ("temp", "top_k", "top_p", "min_p", "penalty_repeat")
# A llama's tensors per layer, and the tensors that may have a bias.
_BIASED = "attn_[qkv]|attn_output|ffn_gate|ffn_up|ffn_down"
_LAYER = f"{_BIASED}|attn_norm|ffn_norm"
_MAX_SHOWN = 3
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class GgufModel:
    """Metadata of a GGUF file that can be served.

    Attributes:
        architecture: transformers' class that it is loaded as.
        model_type: transformers' name for the kind of model.
        dtype: the quantization of most of its weights, as in `Q4_K_M`.
        tokens: the number of tokens in its vocabulary.
        has_template: whether it has a chat template.
    """

    architecture: str
    model_type: str
    dtype: str
    tokens: int
    has_template: bool


def refuse_shards(paths: Collection[str]) -> None:
    """Rejects parts of a file that was split.

    Raises:
        InspectionError: `UNSUPPORTED_FORMAT`.
    """
    if parts := sorted(path for path in paths if _SHARD.search(path)):
        raise _split(parts[0])


def find_model(path: str, header: GgufHeader, beside: Collection[str]) -> GgufModel:
    """Returns the model that a GGUF file's metadata describes.

    Args:
        beside: the names of the files in the same folder.

    Raises:
        InspectionError: `UNSUPPORTED_ARCHITECTURE`, `UNSUPPORTED_FORMAT` for a part of a split file
            or for positions with unknown scaling, `MISSING_TOKENIZER`, `BAD_GGUF`.
    """
    metadata = header.metadata
    kind = metadata.get("general.architecture")
    if metadata.get("split.count", 0) not in {0, 1}:
        raise _split(path)
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise _unsupported(path, kind)
    if metadata.get(f"{kind}.expert_count", 0) != 0:
        raise _unsupported(path, f"{kind} with experts")
    for name, most in _SIZES.items():
        key = f"{kind}.{name}"
        if key in metadata or name not in _OPTIONAL:
            _whole(path, metadata, key, most)
    _check_kinds(path, kind, metadata)
    architecture = ARCHITECTURES[kind]
    _refuse_tensors(path, kind, header)
    _refuse_part_rotation(path, kind, metadata)
    _refuse_scaling(path, kind, header)
    return GgufModel(
        architecture=architecture.name,
        model_type=architecture.model_type,
        dtype=_dtype(header),
        tokens=_tokens(path, header, beside),
        has_template=bool(metadata.get("tokenizer.chat_template")),
    )


def _tokens(path: str, header: GgufHeader, beside: Collection[str]) -> int:
    """Returns the number of tokens, after checking that the tokenizer is usable."""
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else getattr(tokens, "count", 0)
    embeddings = header.tensors.get("token_embd.weight")
    if not isinstance(tokens, list | GgufArray) or not count or embeddings is None:
        raise bad_gguf(path, "has no tokens, or no token_embd.weight")
    if embeddings.shape[-1] != count:
        raise bad_gguf(
            path, f"has {count} tokens and {embeddings.shape[-1]} rows in token_embd.weight"
        )
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            _whole(path, metadata, key, count - 1, least=0)
    if TOKENIZER not in beside:
        _refuse_tokenizer(path, metadata)
    return count


def _refuse_tokenizer(path: str, metadata: dict[str, Value]) -> None:
    kind, pre = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if kind == "gpt2":
        lacking = "tokenizer.ggml.merges" not in metadata
        if pre in PRE_TOKENIZERS and not lacking:
            return
        flaw = "no merges" if lacking else f"the pre-tokenizer {quoted(str(pre))}"
    elif kind == "llama":
        lacking = "tokenizer.ggml.scores" not in metadata
        is_gemma = str(metadata["general.architecture"]).startswith("gemma")
        if is_gemma or (not lacking and metadata.get("tokenizer.ggml.add_space_prefix", True)):
            return
        flaw = "no scores" if lacking else "no space before a text"
    else:
        flaw = f"the kind {quoted(str(kind))}"
    raise InspectionError(
        FailureCode.MISSING_TOKENIZER,
        f"{path} has a tokenizer with {flaw}, which would be read incorrectly. Upload the "
        f"original model's {TOKENIZER} and tokenizer_config.json with it.",
        path,
    )


def _refuse_tensors(path: str, kind: str, header: GgufHeader) -> None:
    """Rejects tensors that the loader would ignore: the model would differ without them."""
    layers = _LAYER + ARCHITECTURES[kind].tensors
    known = re.compile(
        rf"(?:token_embd|output_norm|output|blk\.\d+\.(?:{layers}))\.weight"
        rf"|blk\.\d+\.(?:{_BIASED})\.bias{'|rope_freqs.weight' if kind == 'llama' else ''}"
    )
    unknown = [name for name in header.tensors if not known.fullmatch(name)]
    if unknown:
        raise _not_read(path, f"is a {kind} with the tensor {quoted(min(unknown))}")


def _check_kinds(path: str, kind: str, metadata: dict[str, Value]) -> None:
    """Rejects metadata that the loader would read as a number or text although it is none."""
    for name in _FLOATS:
        value = metadata.get(f"{kind}.{name}", 1.0)
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise bad_gguf(path, f"needs '{kind}.{name}' as a number above zero")
    for name in _SAMPLING:
        value = metadata.get(f"general.sampling.{name}", 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_gguf(path, f"needs 'general.sampling.{name}' as a number")
    if not isinstance(metadata.get("tokenizer.chat_template", ""), str):
        raise bad_gguf(path, "needs 'tokenizer.chat_template' as a string")


def _refuse_part_rotation(path: str, kind: str, metadata: dict[str, Value]) -> None:
    """Rejects heads that are rotated only in part, except for the kind that supports this."""
    width, heads, head, rotated = (
        metadata.get(f"{kind}.{name}", 0)
        for name in (
            "embedding_length",
            "attention.head_count",
            "attention.key_length",
            "rope.dimension_count",
        )
    )
    whole = head or cast("int", width) // cast("int", heads)
    if not whole:
        raise bad_gguf(path, f"has {heads} attention heads in {width} dimensions")
    if rotated and rotated != whole and kind != "phi3":
        raise _not_read(path, f"rotates {rotated} of a head's {whole} dimensions")


def _refuse_scaling(path: str, kind: str, header: GgufHeader) -> None:
    """Rejects positions with a scaling that the loader does not support."""
    start = f"{kind}.rope.scaling."
    keys = {key.removeprefix(start) for key in header.metadata if key.startswith(start)}
    scaling = header.metadata.get(f"{start}type", "none")
    known = scaling in ARCHITECTURES[kind].scalings
    if not known or (scaling != "none" and not keys <= _SCALING_KEYS):
        raise _not_read(
            path,
            f"scales its positions as {quoted(str(scaling))} by "
            f"{', '.join(quoted(key_name) for key_name in sorted(keys)[:_MAX_SHOWN])}",
        )
    if scaling != "none" and not isinstance(header.metadata.get(f"{start}factor"), float):
        raise bad_gguf(path, "scales its positions without a factor")
    if scaling == "yarn":
        _whole(path, header.metadata, f"{start}original_context_length", 1 << 26)


def _dtype(header: GgufHeader) -> str:
    totals = header.bytes_by_kind()
    file_type = header.metadata.get("general.file_type")
    most = max(totals, key=lambda kind: (totals[kind], kind))
    mixture = _FILE_TYPES.get(file_type) if isinstance(file_type, int) else None
    return mixture or most


def _whole(path: str, metadata: dict[str, Value], key: str, most: int, least: int = 1) -> None:
    value = metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = quoted(str(value)) if isinstance(value, int | str | float) else "something else"
        raise bad_gguf(
            path, f"needs {quoted(key)} as a whole number from {least} to {most}; it has {shown}"
        )


def _unsupported(path: str, kind: object) -> InspectionError:
    return InspectionError(
        FailureCode.UNSUPPORTED_ARCHITECTURE,
        f"{path} is a GGUF file of the unsupported architecture {quoted(str(kind))}. "
        f"Supported in GGUF files: {', '.join(ARCHITECTURES)}. "
        "Upload the model as safetensors instead.",
        path,
    )


def _not_read(path: str, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.UNSUPPORTED_FORMAT,
        f"{path} {what}, which is not supported in GGUF files. Upload the model as "
        "safetensors instead.",
        path,
    )


def _split(path: str) -> InspectionError:
    return InspectionError(
        FailureCode.UNSUPPORTED_FORMAT,
        f"{path} is one part of a split GGUF file, which no engine here reads. Join the "
        "parts (llama-gguf-split --merge) and upload the single file.",
        path,
    )
