"""Greedy decoding of a Llama over a static cache, with each step as one CUDA graph.

It is the fastest simple loop: all sequences have the same length and none joins or leaves. Without
CUDA the same steps run eagerly.
"""

from typing import Any

import torch
import torch.nn.functional as nn_functional

WARM_STEPS = 3


class StaticDecoder:
    """Decodes a batch whose prompts have equal lengths.

    Args:
        length: number of tokens per sequence for which the cache has room.
    """

    def __init__(self, model: Any, batch: int, length: int) -> None:
        config = model.config
        self._model = model
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._epsilon = config.rms_norm_eps
        kind = {"device": model.device, "dtype": model.dtype}
        shape = (batch, self._kv_heads, length, self._size)
        layers = model.model.layers
        self._keys = [torch.zeros(shape, **kind) for _ in layers]
        self._values = [torch.zeros(shape, **kind) for _ in layers]
        self._qkv = [
            torch.cat([part.q_proj.weight, part.k_proj.weight, part.v_proj.weight]).detach()
            for part in (layer.self_attn for layer in layers)
        ]
        self._gate_up = [
            torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).detach()
            for layer in layers
        ]
        self._ids = torch.zeros(batch, dtype=torch.long, device=model.device)
        self._position = torch.zeros(1, dtype=torch.long, device=model.device)
        self._places = torch.arange(length, device=model.device)
        theta = _rope_theta(config)
        exponents = torch.arange(0, self._size, 2, device=model.device).float() / self._size
        self._frequencies = 1.0 / theta**exponents
        self._graph: Any = None

    def generate(self, prompts: torch.Tensor, tokens: int) -> torch.Tensor:
        """Returns `tokens` greedy tokens per prompt, with shape (batch, tokens)."""
        output = self._model(prompts, use_cache=True, logits_to_keep=1)
        for number, layer in enumerate(output.past_key_values.layers):
            self._keys[number][:, :, : prompts.shape[1]] = layer.keys
            self._values[number][:, :, : prompts.shape[1]] = layer.values
        self._ids.copy_(output.logits[:, -1].argmax(-1))
        self._position.fill_(prompts.shape[1])
        if self._graph is None and torch.cuda.is_available():
            self._capture()
        chosen = [self._ids.clone()]
        for _ in range(tokens - 1):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
            chosen.append(self._ids.clone())
        return torch.stack(chosen, 1)

    def _capture(self) -> None:
        """Captures a step. The steps that capturing needs are undone, and repeated later."""
        ids, position = self._ids.clone(), self._position.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()
        self._ids.copy_(ids)
        self._position.copy_(position)

    def _step(self) -> None:
        """Replaces each sequence's last token by the next one and advances the position."""
        model, batch = self._model, self._ids.shape[0]
        heads, kv_heads, size = self._heads, self._kv_heads, self._size
        hidden = model.model.embed_tokens.weight[self._ids]
        angles = self._position.float()[:, None] * self._frequencies[None]
        cosine = torch.cat([angles.cos()] * 2, -1).to(hidden.dtype)
        sine = torch.cat([angles.sin()] * 2, -1).to(hidden.dtype)
        mask = (self._places <= self._position)[None, None, None]
        for number, layer in enumerate(model.model.layers):
            normed = self._norm(hidden, layer.input_layernorm.weight) @ self._qkv[number].T
            query, key, value = normed.split([heads * size, kv_heads * size, kv_heads * size], -1)
            query = _rotate(query.view(batch, heads, size), cosine, sine)
            key = _rotate(key.view(batch, kv_heads, size), cosine, sine)
            value = value.view(batch, kv_heads, size)
            self._keys[number].index_copy_(2, self._position, key[:, :, None])
            self._values[number].index_copy_(2, self._position, value[:, :, None])
            attended = nn_functional.scaled_dot_product_attention(
                query.view(batch, kv_heads, heads // kv_heads, size),
                self._keys[number],
                self._values[number],
                attn_mask=mask,
            )
            hidden = (
                hidden + attended.reshape(batch, heads * size) @ layer.self_attn.o_proj.weight.T
            )
            normed = self._norm(hidden, layer.post_attention_layernorm.weight)
            gate, up = (normed @ self._gate_up[number].T).chunk(2, -1)
            hidden = hidden + (nn_functional.silu(gate) * up) @ layer.mlp.down_proj.weight.T
        logits = self._norm(hidden, model.model.norm.weight) @ model.lm_head.weight.T
        self._ids.copy_(logits.argmax(-1))
        self._position += 1

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn_functional.rms_norm(hidden, (hidden.shape[-1],), weight, self._epsilon)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    half = heads.shape[-1] // 2
    turned = torch.cat([-heads[..., half:], heads[..., :half]], -1)
    return heads * cosine + turned * sine


def _rope_theta(config: Any) -> float:
    parameters = getattr(config, "rope_parameters", None) or {}
    return float(parameters.get("rope_theta") or getattr(config, "rope_theta", 10_000.0))
