"""Writes a transformers folder as a GGUF file, as llama.cpp's convert_hf_to_gguf.py does."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

library: Any = transformers

KINDS = {"gemma3_text": "gemma3"}
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7}
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1


def write_gguf(
    source: Path,
    path: Path,
    stored: str = "F32",
    *,
    pre: str = "gpt-2",
    template: str | None = None,
    numbers: Mapping[str, int] | None = None,
) -> Path:
    """Writes the model of a folder and its byte-level tokenizer.

    Args:
        stored: the type of all matrices. Vectors stay F32.
        pre: the name of the pre-tokenizer.
        template: replaces the tokenizer's chat template.
        numbers: additional metadata.
    """
    model = library.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    kind = KINDS.get(model.config.model_type, model.config.model_type)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_name("tiny")
    writer.add_file_type(FILE_TYPES[stored])
    _write_sizes(writer, model.config, kind)
    if (source / "tokenizer.json").exists():
        _write_tokenizer(writer, source, model.config, pre, template)
    else:
        _write_bare_tokens(writer, model.config.vocab_size)
    for key, value in (numbers or {}).items():
        writer.add_uint32(key, value)
    for name, tensor in tensors(model, kind).items():
        quantization = gguf.GGMLQuantizationType[stored if tensor.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(tensor, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(model: Any, kind: str) -> Mapping[str, np.ndarray[Any, Any]]:
    """Returns the model's tensors under llama.cpp's names and with llama.cpp's changes."""
    config = model.config
    arch = next(member for member, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    result: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = tensor.float().numpy()
        if kind == "llama" and ".q_proj." in name:
            value = _permuted(value, config.num_attention_heads)
        if kind == "llama" and ".k_proj." in name:
            value = _permuted(value, config.num_key_value_heads)
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            value = value + 1
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name, name
        result[gguf_name] = np.ascontiguousarray(value)
    if config.rope_parameters.get("rope_type") == "llama3":
        result["rope_freqs.weight"] = _llama3(config)
    return result


def _permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Returns the rows in the order of llama.cpp's rotation, with pairs next to each other."""
    shape = weight.shape
    return (
        weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    )


def _llama3(config: Any) -> np.ndarray[Any, Any]:
    """Returns the slowdown factor of each rotary frequency, by the formula of llama.cpp's
    converter.
    """
    rope = config.rope_parameters
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors: list[float] = []
    for place in range(0, config.head_dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (place / config.head_dim)
        if length < original / high:
            factors.append(1)
        elif length > original / low:
            factors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def _write_sizes(writer: gguf.GGUFWriter, config: Any, kind: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope = config.rope_parameters
    partial = rope.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(head * partial))
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in {"linear", "yarn"}:
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind in {"gemma2", "gemma3", "phi3"} and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _write_tokenizer(
    writer: gguf.GGUFWriter, source: Path, config: Any, pre: str, template: str | None
) -> None:
    tokenizer = library.AutoTokenizer.from_pretrained(source)
    added = tokenizer.added_tokens_decoder
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(config.vocab_size)]
    kinds = [
        (CONTROL if added[number].special else USER_DEFINED)
        if number in added
        else (NORMAL if number in names else 5)
        for number in range(config.vocab_size)
    ]
    merges = json.loads((source / "tokenizer.json").read_text())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    )
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    if template or tokenizer.chat_template:
        writer.add_chat_template(template or tokenizer.chat_template)


def _write_bare_tokens(writer: gguf.GGUFWriter, count: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{number}" for number in range(count)])
    writer.add_token_merges(["t 1"])
