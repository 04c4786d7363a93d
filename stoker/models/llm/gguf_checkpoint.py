"""Loads language models from GGUF: tensors and tokenizer with transformers, the rest from the file.

transformers' own GGUF reader omits parts of the configuration, which its defaults then decide:
sizes of heads and windows, scaling of positions, limits of the logits. This module uses everything
that the file states. A missing tensor is an error. The inspection has checked the file.

Keys: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TOKENIZER = "tokenizer.json"
_ENDS = ("eos", "eot", "eom")
_FREQUENCIES = "rope_freqs.weight"

_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
# Number of layers of the largest model of each kind. Its attention is scaled differently from the
# others.
_LARGEST = {"gemma2": 46, "gemma3": 62}


class GgufError(Exception):
    """The file lacks a part of the model. The message names the part."""


def gguf_file(folder: Path) -> str | None:
    """Returns the name of the folder's GGUF file. None if the model uses safetensors."""
    if any((folder / name).exists() for name in _WEIGHTS):
        return None
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if name.lower().endswith(".gguf")), None)


def load_config(folder: Path, name: str) -> Any:
    """Returns the configuration of a GGUF file as a transformers object."""
    metadata, tensors = _read(folder / name)
    kind = metadata["general.architecture"]
    values = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()}
    heads = values["attention.head_count"]
    head = values.get("attention.key_length") or values["embedding_length"] // heads
    fields = {field: values[key] for key, field in _FIELDS.items() if key in values}
    if kind in _LARGEST:
        largest = values["block_count"] == _LARGEST[kind]
        fields["query_pre_attn_scalar"] = values["embedding_length"] // heads if largest else head
    ids = {
        f"{token_name}_token_id": metadata.get(f"tokenizer.ggml.{key}_token_id")
        for token_name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    library: Any = transformers
    return library.AutoConfig.for_model(
        "gemma3_text" if kind == "gemma3" else kind,
        **fields,
        **ids,
        num_key_value_heads=values.get("attention.head_count_kv", heads),
        head_dim=head,
        rope_parameters=_positions(values, kind, head),
        vocab_size=metadata["tokenizer.ggml.tokens"],
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        tie_word_embeddings="output.weight" not in tensors,
    )


def load_model(folder: Path, name: str, **options: Any) -> Any:
    """Returns the language model of a GGUF file, dequantized.

    Args:
        options: arguments of `from_pretrained`, mainly `dtype`.

    Raises:
        GgufError: tensors are missing.
    """
    library: Any = transformers
    model, loading_info = library.AutoModelForCausalLM.from_pretrained(
        str(folder),
        gguf_file=name,
        config=load_config(folder, name),
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    if missing := sorted(loading_info["missing_keys"]):
        raise GgufError(
            f"{name} lacks {len(missing)} of the model's tensors, such as {missing[0]}."
        )
    _, tensors = _read(folder / name)
    if _FREQUENCIES in tensors:
        _slow_down(model, folder / name)
    return model


def load_tokenizer(folder: Path, name: str) -> Any:
    """Returns the tokenizer from the folder's tokenizer.json, or from the GGUF file if that is
    missing.

    The GGUF file fills in parts that the folder's files omit, mainly the chat template.
    """
    library: Any = transformers
    kind: Any = library.PreTrainedTokenizerFast
    if not (folder / _TOKENIZER).exists():
        return kind.from_pretrained(str(folder), gguf_file=name, local_files_only=True)
    tokenizer = kind.from_pretrained(str(folder), local_files_only=True)
    metadata, _ = _read(folder / name)
    for name_of_token in ("bos", "eos"):
        token = metadata.get(f"tokenizer.ggml.{name_of_token}_token_id")
        if getattr(tokenizer, f"{name_of_token}_token") is None and token is not None:
            setattr(tokenizer, f"{name_of_token}_token", tokenizer.convert_ids_to_tokens(token))
    if not tokenizer.chat_template:
        tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    return tokenizer


def generation_config(folder: Path, name: str) -> Mapping[str, Any]:
    """Returns a GGUF file's sampling options under the field names of generation_config.json."""
    metadata, _ = _read(folder / name)
    ends = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in _ENDS]
    sampling = {
        field: metadata[f"general.sampling.{key}"]
        for key, field in _SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    return {"eos_token_id": [end for end in ends if end is not None], **sampling}


def _positions(own: Mapping[str, Any], kind: str, head: int) -> dict[str, Any]:
    """Returns `rope_parameters` of transformers."""
    parameters: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": own.get("rope.freq_base", 1e4),
    }
    scaling = own.get("rope.scaling.type", "none")
    if scaling != "none":
        parameters |= {"rope_type": scaling, "factor": own["rope.scaling.factor"]}
    if scaling == "yarn":
        original = own["rope.scaling.original_context_length"]
        parameters["original_max_position_embeddings"] = original
    if kind == "phi3":
        parameters["partial_rotary_factor"] = own.get("rope.dimension_count", head) / head
    if kind == "gemma3":
        local = {"rope_type": "default", "rope_theta": own.get("rope.freq_base_swa", 1e4)}
        return {"full_attention": parameters, "sliding_attention": local}
    return parameters


def _slow_down(model: Any, path: Path) -> None:
    """Divides the frequencies of the positions by the file's factors, as Llama 3.1 scales them."""
    import gguf

    library: Any = gguf
    tensors = library.GGUFReader(path).tensors
    data = next(tensor.data for tensor in tensors if tensor.name == _FREQUENCIES)
    factors = torch.tensor(data, dtype=torch.float32)
    positions = model.model.rotary_emb
    positions.inv_freq /= factors
    positions.original_inv_freq /= factors


def _read(path: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Returns the metadata, with lists of texts replaced by their lengths, and the names of the
    tensors.
    """
    from transformers.integrations import gguf

    reader: Any = gguf
    return reader.read_gguf_metadata(str(path))
