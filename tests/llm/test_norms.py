"""Fused norms, compared with transformers' own."""

from typing import Any

import pytest
import torch

from stoker.models.llm.engines.paged import norms
from tests.support import causal


@pytest.mark.parametrize(
    ("model_type", "is_fused"),
    [("llama", True), ("qwen3", True), ("mixtral", True), ("gemma3_text", False), ("gpt2", False)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_norms_change_no_logits(model_type: str, is_fused: bool, dtype: torch.dtype) -> None:
    """Gemma's norms add one to their weights, so they keep their own code."""
    model: Any = causal.model(model_type).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.weight.data.copy_(0.5 + torch.rand(module.weight.shape, generator=generator))
    ids = torch.arange(5, 25)[None]
    with torch.inference_mode():
        known = model(ids).logits.float()
        fused = norms.fuse(model)
        assert bool(fused) == is_fused
        difference = (model(ids).logits.float() - known).abs().max() / known.abs().max()
        assert difference < (1e-5 if dtype == torch.float32 else 3e-2)
        norms.unfuse(fused)
        assert torch.equal(model(ids).logits.float(), known)
