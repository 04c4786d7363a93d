"""Converts a decoder language model for OpenVINO.

The result has the form that optimum-intel writes and OpenVINO's tools expect. Keys and values are
the model's state, and each layer's attention is one ScaledDotProductAttention. The conversion uses
the current transformers directly, so it needs no second environment with an older version.
"""

import logging
import math
import time
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer

from stoker.models.engines.rounding import round_weights
from stoker.models.llm import probes
from stoker.models.llm.checkpoint import load_config, load_model
from stoker.models.llm.engines.ir import IR, Facts
from stoker.models.llm.engines.positions import long_borders, longest
from stoker.models.llm.probes import Probes
from stoker.models.stages.stateful import NotExportableError, cache_of, make_stateful, parts_of
from stoker.wire.conversions import WeightFormat

log = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest difference from torch, as a share of torch's largest logit."""
_BATCH, _LENGTH, _PAST = 2, 3, 5
"""Example sizes for the export. All of these dimensions stay dynamic in the result."""


class _LanguageStep(torch.nn.Module):
    """Forward pass with keys and values as plain inputs and outputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        cache = cache_of(past)
        places = torch.arange(attention_mask.shape[1])
        # transformers uses a four-dimensional mask unchanged. PagedAttention has its own mask.
        is_past = places[None, None, None, :] <= position_ids[:, None, :, None]
        mask = is_past & attention_mask[:, None, None, :].bool()
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return (outputs.logits, *parts_of(cache))


def check(config: Any) -> None:
    """Raises `NotExportableError` for models that are known to fail, before time is spent on
    them.
    """
    library: Any = transformers
    model_class = library.AutoModelForCausalLM._model_mapping[type(config)]
    if not {"position_ids", "past_key_values"} <= set(signature(model_class.forward).parameters):
        raise NotExportableError("The model accepts no positions, or keeps no keys and values.")
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise NotExportableError(
            f"The model's layers do not all use full attention: {sorted(kinds)}."
        )
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        raise NotExportableError("The model's attention has a sliding window.")
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=config).layers):
        raise NotExportableError("The model keeps more state per sequence than keys and values.")
    if long_borders(text):
        raise NotExportableError(
            "The model's positions depend on a sequence's whole length (LongRoPE)."
        )


@torch.no_grad()
def export(
    model_dir: Path, folder: Path, *, threads: int, weight_format: WeightFormat | None = None
) -> float:
    """Writes the OpenVINO IR of a model folder's language model, and compares it with torch.

    Args:
        weight_format: format to which the weights are rounded, after the conversion itself has
            passed the comparison.

    Returns:
        The largest difference of a logit from torch's, as a share of torch's largest. With a
            `weight_format`, the difference of the rounded weights.

    Raises:
        NotExportableError: the model's kind cannot be converted, or its results differ from
            torch's.
    """
    started = time.perf_counter()
    config = load_config(model_dir)
    check(config)
    model = load_model(model_dir, dtype=torch.float32, attn_implementation="sdpa").eval()
    text = config.get_text_config(decoder=True)
    layers = text.num_hidden_layers
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    ir = _converted(model, layers, heads, size)
    make_stateful(ir, ("input_ids", "attention_mask", "position_ids"), layers, heads, size)
    import openvino

    openvino.save_model(ir, folder / IR, compress_to_fp16=False)
    Facts(max_length=longest(text), vocabulary=text.vocab_size).write(folder)
    log.info("exported in %.1f s", time.perf_counter() - started)
    prompts = probes.drawn(text.vocab_size, longest(text))
    known = Probes(prompts, torch.stack([_logits(model, prompt) for prompt in prompts]))
    difference = known.difference(_computed(folder, prompts, threads))
    if not difference <= TOLERANCE:
        raise NotExportableError(f"The converted model differs from torch by {difference:.1e}.")
    if weight_format:
        round_weights(folder / IR, weight_format)
        rounded = _computed(folder, prompts, threads)
        difference = known.difference(rounded)
        if not math.isfinite(difference):
            raise NotExportableError(f"The model's weights cannot be stored in {weight_format}.")
        # A trial must reproduce the logits of the rounded weights, not those of the original
        # weights.
        known = Probes(prompts, rounded)
    known.write(folder)
    return difference


def _converted(model: Any, layers: int, heads: int, size: int) -> Any:
    import openvino

    library: Any = openvino
    ids = torch.zeros(_BATCH, _LENGTH, dtype=torch.int64)
    positions = torch.arange(_PAST, _PAST + _LENGTH).expand(_BATCH, -1).contiguous()
    mask = torch.ones(_BATCH, _PAST + _LENGTH, dtype=torch.int64)
    past = [torch.zeros(_BATCH, heads, _PAST, size) for _ in range(2 * layers)]
    # Uses tracing, because `torch.export` takes four times as long for its symbolic shapes. The
    # comparison would detect values that a trace fixed, such as a length.
    return library.convert_model(_LanguageStep(model), example_input=(ids, mask, positions, past))


def _logits(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """Returns torch's logits after a prompt."""
    return model(torch.tensor([prompt])).logits[0, -1].float()


def _computed(folder: Path, prompts: Sequence[Sequence[int]], threads: int) -> torch.Tensor:
    """Returns the conversion's logits after prompts."""
    from stoker.models.llm.engines.openvino import OpenVinoRunner

    runner = OpenVinoRunner(
        folder, threads=threads, precision="f32", cache_bytes=probes.CACHE_BYTES
    )
    return probes.computed(runner, prompts)
