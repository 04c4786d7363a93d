"""Models read from GGUF against those that they were written from."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.replica.llm.files import load_model
from tests.llm.support import generated
from tests.support.gguf import write_gguf

library: Any = transformers

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
GEMMA3_ROPE = {
    "full_attention": LINEAR | {"rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}),
    "llama-tied-wide": ("llama", {"head_dim": 32, "tie_word_embeddings": True}),
    "llama-3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
            "num_hidden_layers": 6,
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
    "phi3": ("phi3", {"partial_rotary_factor": 0.5, "sliding_window": 64}),
}


def made(name: str, folder: Path) -> Any:
    kind, own = MODELS[name]
    transformers.set_seed(0)
    config = library.AutoConfig.for_model(kind, **{**SIZES, "eos_token_id": 2, **own})
    model = library.AutoModelForCausalLM.from_config(config).eval()
    for parameter_name, parameter in model.named_parameters():
        # Biases and norms begin as zeros and ones, which would hide that they are lost.
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.0 if "bias" in parameter_name else 1.0, 0.3)
    model.save_pretrained(folder)
    return model


def read(folder: Path) -> Any:
    return load_model(folder, dtype=torch.float32).eval()


PROMPT = [(7 * n) % 96 for n in range(100)]


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize("name", MODELS)
def test_single_precision_gives_the_same(name: str, tmp_path: Path) -> None:
    original = made(name, tmp_path / "a")
    folder = tmp_path / "b"
    folder.mkdir()
    write_gguf(tmp_path / "a", folder / "model.gguf")
    found = read(folder)
    assert generated(found, PROMPT, 20) == generated(original, PROMPT, 20)
    theirs = logits(original)
    difference = (logits(found) - theirs).abs().max() / theirs.abs().max()
    print(name, float(difference))
    assert difference <= 1e-5
