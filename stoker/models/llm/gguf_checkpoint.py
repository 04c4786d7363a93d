"""Loads language models from GGUF: tensors and tokenizer with transformers, the rest from the file.

transformers' own reading of a GGUF's configuration leaves out what its defaults then decide: sizes
of heads and windows, how positions are scaled, what bounds the logits. Here all that the file
states is taken over, and a tensor that is missing is an error. Inspection has checked the file.

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
# Layers of the largest model of each kind, whose attention is scaled otherwise than the others'.
_LARGEST = {"gemma2": 46, "gemma3": 62}


class GgufError(Exception):
    """The file lacks a part of the model; the message tells which."""


def gguf_file(folder: Path) -> str | None:
    """The name of the folder's GGUF file; None where the model is of safetensors."""
    if any((folder / name).exists() for name in _WEIGHTS):
        return None
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if name.lower().endswith(".gguf")), None)


def load_config(folder: Path, name: str) -> Any:
    """The configuration that a GGUF file describes, as of transformers."""
    metadata, tensors = _read(folder / name)
    kind = metadata["general.architecture"]
    own = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()}
    heads = own["attention.head_count"]
    head = own.get("attention.key_length") or own["embedding_length"] // heads
    fields = {field: own[key] for key, field in _FIELDS.items() if key in own}
    if kind in _LARGEST:
        largest = own["block_count"] == _LARGEST[kind]
        fields["query_pre_attn_scalar"] = own["embedding_length"] // heads if largest else head
    ids = {
        f"{one}_token_id": metadata.get(f"tokenizer.ggml.{key}_token_id")
        for one, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    library: Any = transformers
    return library.AutoConfig.for_model(
        "gemma3_text" if kind == "gemma3" else kind,
        **fields,
        **ids,
        num_key_value_heads=own.get("attention.head_count_kv", heads),
        head_dim=head,
        rope_parameters=_positions(own, kind, head),
        vocab_size=metadata["tokenizer.ggml.tokens"],
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        tie_word_embeddings="output.weight" not in tensors,
    )


def load_model(folder: Path, name: str, **options: Any) -> Any:
    """The language model of a GGUF file, dequantized.

    Args:
        options: for `from_pretrained`, `dtype` above all.

    Raises:
        GgufError: tensors are missing.
    """
    library: Any = transformers
    model, found = library.AutoModelForCausalLM.from_pretrained(
        str(folder),
        gguf_file=name,
        config=load_config(folder, name),
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    if missing := sorted(found["missing_keys"]):
        raise GgufError(f"{name} lacks {len(missing)} of the model's tensors, {missing[0]} first.")
    _, tensors = _read(folder / name)
    if _FREQUENCIES in tensors:
        _slow_down(model, folder / name)
    return model


def load_tokenizer(folder: Path, name: str) -> Any:
    """The tokenizer: of the folder's tokenizer.json, where it has one, else of the GGUF file.

    What the folder's files do not say, the chat template above all, is taken from the GGUF.
    """
    library: Any = transformers
    kind: Any = library.PreTrainedTokenizerFast
    if not (folder / _TOKENIZER).exists():
        return kind.from_pretrained(str(folder), gguf_file=name, local_files_only=True)
    tokenizer = kind.from_pretrained(str(folder), local_files_only=True)
    metadata, _ = _read(folder / name)
    for one in ("bos", "eos"):
        token = metadata.get(f"tokenizer.ggml.{one}_token_id")
        if getattr(tokenizer, f"{one}_token") is None and token is not None:
            setattr(tokenizer, f"{one}_token", tokenizer.convert_ids_to_tokens(token))
    if not tokenizer.chat_template:
        tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    return tokenizer


def generation_config(folder: Path, name: str) -> Mapping[str, Any]:
    """What a GGUF file says of drawing tokens, in the words of generation_config.json."""
    metadata, _ = _read(folder / name)
    ends = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in _ENDS]
    sampling = {
        field: metadata[f"general.sampling.{key}"]
        for key, field in _SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    return {"eos_token_id": [end for end in ends if end is not None], **sampling}


def _positions(own: Mapping[str, Any], kind: str, head: int) -> dict[str, Any]:
    """transformers' `rope_parameters`."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": own.get("rope.freq_base", 1e4)}
    scaling = own.get("rope.scaling.type", "none")
    if scaling != "none":
        found |= {"rope_type": scaling, "factor": own["rope.scaling.factor"]}
    if scaling == "yarn":
        original = own["rope.scaling.original_context_length"]
        found["original_max_position_embeddings"] = original
    if kind == "phi3":
        found["partial_rotary_factor"] = own.get("rope.dimension_count", head) / head
    if kind == "gemma3":
        local = {"rope_type": "default", "rope_theta": own.get("rope.freq_base_swa", 1e4)}
        return {"full_attention": found, "sliding_attention": local}
    return found


def _slow_down(model: Any, path: Path) -> None:
    """Divide the frequencies of the positions by the file's factors, as Llama 3.1 scales them."""
    import gguf

    library: Any = gguf
    tensors = library.GGUFReader(path).tensors
    data = next(one.data for one in tensors if one.name == _FREQUENCIES)
    factors = torch.tensor(data, dtype=torch.float32)
    positions = model.model.rotary_emb
    positions.inv_freq /= factors
    positions.original_inv_freq /= factors


def _read(path: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The metadata, with lists of texts as their lengths, and the names of the tensors."""
    from transformers.integrations import gguf

    reader: Any = gguf
    return reader.read_gguf_metadata(str(path))
