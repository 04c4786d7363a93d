"""Tiny language models of every served kind, with random weights."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.llm.support import VOCABULARY

library: Any = transformers

POSITIONS, WINDOW = 256, 8
_WIDTH, _INNER, _EXPERT, _HEADS, _KEY_HEADS, _HEAD = 64, 96, 48, 4, 2, 16


def _named(names: str, size: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), size)


_SMALL: Mapping[str, Any] = {
    **_named("vocab_size vocab_size_per_layer_input", VOCABULARY),
    **_named("hidden_size d_model n_embd embedding_size lru_width", _WIDTH),
    **_named(
        """num_hidden_layers n_layer n_layers num_layers num_decoder_layers decoder_layers
        num_experts_per_tok moe_k moe_topk linear_num_key_heads eos_token_id""",
        2,
    ),
    **_named(
        """num_attention_heads n_head n_heads num_heads decoder_attention_heads num_experts
        num_local_experts n_routed_experts moe_num_experts linear_num_value_heads""",
        _HEADS,
    ),
    **_named("num_key_value_heads", _KEY_HEADS),
    **_named(
        """head_dim qk_nope_head_dim v_head_dim kv_lora_rank index_head_dim linear_key_head_dim
        linear_value_head_dim mamba_d_head mamba_headdim""",
        _HEAD,
    ),
    **_named(
        """intermediate_size ffn_dim decoder_ffn_dim d_ff dff n_inner ffn_hidden_size
        intermediate_size_mlp""",
        _INNER,
    ),
    **_named(
        """moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        expert_ffn_hidden_size shared_experts_intermediate_size""",
        _EXPERT,
    ),
    # With few heads, the scores of sparse attention tie at zero, and ties are broken at random.
    **_named("q_lora_rank index_n_heads", 32),
    **_named(
        """max_position_embeddings n_positions max_seq_len seq_length n_ctx context_length
        max_sequence_length""",
        POSITIONS,
    ),
    # Shorter than the prompts, so that the limits take effect.
    **_named("sliding_window attention_chunk_size window_size index_topk", WINDOW),
    **_named("chunk_size mamba_chunk_size state_size mamba_d_state mamba_n_heads", 8),
    **_named("qk_rope_head_dim rotary_dim laurel_rank hidden_size_per_layer_input", 8),
    **_named("initializer_range init_std std", 0.2),
    **_named("n_groups mamba_n_groups n_group topk_group num_expert_group n_shared_experts", 1),
    **_named("bos_token_id first_k_dense_replace", 1),
    **_named("pad_token_id num_nextn_predict_layers", 0),
    "is_decoder": True,
}
_DROPPED = object()

_MIXED = ["linear_attention", "full_attention"] * 2
_LATENT: Mapping[str, Any] = {"num_key_value_heads": _HEADS, "head_dim": _DROPPED}
_LINEAR: Mapping[str, Any] = {"num_hidden_layers": 4, "layer_types": _MIXED}
_CONVOLUTIONS: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention"] * 2,
}
_WINDOWS: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_MAMBA: Mapping[str, Any] = {"mamba_expand": 2}
_HYBRID: Mapping[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": _DROPPED,
    "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid", "mamba"],
    "num_key_value_heads": _HEADS,
    "head_dim": _DROPPED,
}
_EVEN: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}


def _chosen(names: str) -> dict[str, Any]:
    return {name: _SMALL[name] for name in names.split()}


_INNER_TEXT: Mapping[str, Any] = _chosen(
    """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads max_position_embeddings initializer_range"""
)
_LINEAR_TEXT: Mapping[str, Any] = _INNER_TEXT | _chosen(
    """head_dim linear_num_key_heads linear_num_value_heads linear_key_head_dim
    linear_value_head_dim num_experts num_experts_per_tok moe_intermediate_size
    shared_expert_intermediate_size"""
)
_INDEXED: Mapping[str, Any] = _LINEAR | {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": _HEAD,
    "indexer_budget": 16,
    "indexer_compress_ratio": 2,
    "ple_layer_ids": [1],
    "ple_embed_dim": 32,
    "ngram_vocab_size_base": 50,
    "heads_per_ngram": 2,
    "hc_lowrank": 8,
    "split_ngram_parts": 1,
    "eos_token_id": 2,
}
_TOWER: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 28,
    "patch_size": 14,
}
_NOTES: Mapping[str, Any] = _LATENT | {"head_dim": 24}

_OWN: Mapping[str, Mapping[str, Any]] = {
    **_named(
        """axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa minicpm3
        youtu""",
        _LATENT,
    ),
    **_named("minimax olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next", _LINEAR),
    "bailing_hybrid": _LINEAR | {"num_key_value_heads": _HEADS},
    "bamba": _MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _EVEN, "full_attention": None},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": _KEY_HEADS, "clip_qkv": 8, "rope_theta": 10_000.0},
        "ffn_config": {"ffn_hidden_size": _WIDTH, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note": {
        "text_config": _INNER_TEXT
        | _chosen(
            """kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
            n_routed_experts num_experts_per_tok moe_intermediate_size index_topk index_head_dim
            index_n_heads shared_experts_intermediate_size pad_token_id"""
        )
        | _NOTES,
        "vision_config": {
            **_TOWER,
            "num_hidden_layers": 42,
            "adapter_in_dim": 32,
            "adapter_out_dim": _WIDTH,
        },
        "audio_config": {"adapter_out_dim": _WIDTH},
    },
    "dots3_note_text": _NOTES,
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 2 * _WIDTH},
    "fuyu": _INNER_TEXT
    | {"num_key_value_heads": _DROPPED, "text_config": {**_INNER_TEXT, "model_type": "persimmon"}},
    # A low cap, so that it matters.
    "gemma2": {"attn_logit_softcapping": 4.0},
    "gemma3n_text": _WINDOWS
    | {"num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": _WINDOWS | {"num_kv_shared_layers": 2},
    "gemma4_unified_text": _WINDOWS,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": _MAMBA
    | {"num_hidden_layers": 4, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "kimi_linear": _LINEAR | _LATENT | {"linear_head_dim": _HEAD, "linear_num_heads": _HEADS},
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS | {"num_dense_layers": 1},
    "lfm3": _CONVOLUTIONS,
    "llama4": {
        "text_config": _INNER_TEXT
        | {"intermediate_size_mlp": _INNER, "head_dim": _HEAD, "num_local_experts": 4}
        | {"attention_chunk_size": WINDOW},
        "vision_config": _TOWER
        | {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    },
    "longcat_flash": {"num_key_value_heads": _HEADS, "head_dim": 8, "qk_head_dim": 24},
    "mamba2": {"num_heads": 8, "head_dim": _HEAD, "expand": 2},
    "phi4_multimodal": {
        "vision_config": _TOWER | {"crop_size": 28, "num_hidden_layers": 2},
        "audio_config": {
            "hidden_size": 32,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "ext_pw_out_channel": 32,
            "nemo_conv_channels": 32,
            "depthwise_separable_out_channel": 32,
            "input_size": 16,
        },
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "qwen3_5": {"text_config": _LINEAR_TEXT | _LINEAR},
    "qwen3_5_moe": {"text_config": _LINEAR_TEXT | _LINEAR},
    "qwen4_exp": {"text_config": _LINEAR_TEXT | _INDEXED},
    "qwen4_exp_text": _INDEXED,
    # The model rounds its sizes up to 64.
    "xlstm": {"num_heads": 4, "hidden_size": 128, "embedding_dim": 128, "head_dim": _DROPPED},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": _HYBRID | {"attention_hidden_size": 128, "attention_head_dim": 32, "n_mamba_heads": 2},
    "zamba2": _HYBRID
    | {"num_mem_blocks": 2, "n_mamba_heads": 8, "mamba_ngroups": 1, "adapter_rank": 8},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16, "num_hidden_layers": 4},
}
"""Settings per kind that make its configuration consistent or add its different sorts of layers."""


def config(model_type: str) -> Any:
    """Returns the smallest possible configuration of a kind."""
    kind: Any = CONFIG_MAPPING[model_type]
    names = {*inspect.signature(kind).parameters, *kind.attribute_map}
    for base in kind.__mro__:
        names.update(getattr(base, "__annotations__", {}))
    sizes = {name: size for name, size in _SMALL.items() if name in names}
    sizes |= _OWN.get(model_type, {})
    return kind(**{name: size for name, size in sizes.items() if size is not _DROPPED})


def model(model_type: str) -> Any:
    """Returns a language model of a kind. Its answers depend on the whole prompt."""
    transformers.set_seed(1)
    made = library.AutoModelForCausalLM.from_config(config(model_type)).eval()
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weights in made.named_parameters():
            # Many kinds start with weights so small that every prompt gets the same answer.
            if weights.dim() > 1 and "A_log" not in name and weights.std() < 0.1:
                weights.copy_(torch.randn(weights.shape, generator=drawn) * 0.2)
    return made
