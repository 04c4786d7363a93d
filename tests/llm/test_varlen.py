"""The paged runner on the kernel for blocks.

The kernel needs a graphics device. Here, plain torch computes what its documentation promises.
"""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.attention import varlen as kernel

from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.engines.paged import varlen
from stoker.models.llm.engines.paged.attention import AttentionInputs, AttentionLayer
from stoker.models.llm.engines.paged.captured import EagerCapturing
from stoker.models.llm.engines.paged.layout import ChunkSpan, Layout
from stoker.models.llm.engines.paged.memory import BlockMemory
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import load
from stoker.models.llm.scheduler import Scheduler
from tests.llm.support import GREEDY, VOCABULARY, Answers, generated, submission, tiny_llama

library: Any = transformers


def contract(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    begins: torch.Tensor,
    _ignored: torch.Tensor,
    longest: int,
    longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    return_aux: kernel.AuxRequest | None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes what `torch.nn.attention.varlen.varlen_attn` promises for blocks."""
    assert begins.dtype == seqused_k.dtype == block_table.dtype == torch.int32
    assert begins.is_contiguous()
    assert query.is_contiguous()
    assert block_table.stride(-1) == 1
    assert keys.shape[1] % 256 == 0
    assert enable_gqa == (query.shape[1] != keys.shape[2])
    out = torch.full_like(query, math.nan)
    logsumexp = torch.full(query.shape[1::-1], math.nan)
    for number, (begin, end) in enumerate(itertools.pairwise(begins)):
        count, length = int(end - begin), int(seqused_k[number])
        assert count <= longest
        assert length <= longest_key
        # The last query is aligned with the last key.
        places = torch.arange(length)
        queries = torch.arange(length - count, length)[:, None]
        left, right = window_size
        seen = torch.ones(count, length, dtype=torch.bool)
        if right >= 0:
            seen &= places <= queries + right
        if left >= 0:
            seen &= places >= queries - left
        blocks = block_table[number].long()
        key, value = (part[blocks].flatten(0, 1)[:length] for part in (keys, values))
        repeats = query.shape[1] // keys.shape[2]
        key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[begin:end], key)
        scores = scores * (query.shape[2] ** -0.5 if scale is None else scale)
        scores = scores.masked_fill(~seen, -math.inf)
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
        logsumexp[:, begin:end] = scores.logsumexp(-1)
    return (out, logsumexp) if return_aux and return_aux.lse else out


@pytest.fixture
def on_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "varlen_attn", contract)
    monkeypatch.setattr(varlen, "supported", lambda *_: True)


def prompt(length: int) -> list[int]:
    chance = random.Random(length)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


WINDOWED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 600,
    "initializer_range": 0.3,
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"],
}
EXPERTS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}


@pytest.mark.usefixtures("on_kernel")
@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("kind", ["llama", "windows", "sinks", "mixed"])
def test_answers_as_generate_does(
    kind: str, is_captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several blocks, in pieces, next to sequences that draw."""
    if kind == "llama":
        model = load(tiny_llama(tmp_path, positions=600), torch.float32, torch.device("cpu"))
    else:
        transformers.set_seed(3)
        kinds = {
            "windows": (library.Gemma3ForCausalLM, library.Gemma3TextConfig, {}),
            "sinks": (library.GptOssForCausalLM, library.GptOssConfig, EXPERTS),
        }
        kinds["mixed"] = kinds["windows"]
        made, config, more = kinds[kind]
        model = made(config(**WINDOWED, **more)).eval()
    expected_kind = varlen.VarlenAttention
    if kind == "mixed":
        expected_kind = varlen.MixedAttention
        monkeypatch.setattr(varlen, "supported", lambda layer, _: layer.window is not None)
    prompts = [prompt(length) for length in (1, 30, 255, 256, 257, 500)]
    expected = [generated(model, tokens, 8) for tokens in prompts]
    runner = PagedRunner(
        model,
        threads=1,
        cache_bytes=1 << 22,
        capturing=EagerCapturing() if is_captured else None,
    )
    assert isinstance(runner._attention, expected_kind)
    while runner.rest():
        pass
    for step in (256, 100):
        monkeypatch.setattr(scheduling, "STEP_TOKENS", step)
        answers = Answers(Scheduler(runner, ()))
        for number, tokens in enumerate(prompts):
            answers.scheduler.submit(submission(number, tokens, GREEDY))
        answers.drain()
        assert [answers.tokens[number] for number in range(len(prompts))] == expected


class TestCheck:
    """The kernel is compared with torch's scaled dot product before it is used."""

    LAYERS = [
        AttentionLayer(8, 2, 64, 64, window, torch.float32, has_sinks=has_sinks)
        for window, has_sinks in ((None, False), (7, False), (None, True))
    ]

    @pytest.mark.usefixtures("on_kernel")
    def test_it_agrees(self) -> None:
        assert varlen.agrees(self.LAYERS, torch.device("cpu"))

    def test_it_does_not_run(self) -> None:
        assert not varlen.agrees(self.LAYERS, torch.device("cpu"))

    @pytest.mark.parametrize("window", [(-1, -1), (5, 0)])
    def test_it_differs(self, window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def other(*args: Any, **options: Any) -> Any:
            return contract(*args, **options | {"window_size": window})

        monkeypatch.setattr(kernel, "varlen_attn", other)
        assert not varlen.agrees(self.LAYERS, torch.device("cpu"))


@pytest.mark.parametrize("has_sinks", [False, True])
def test_the_kernel_accepts_the_arguments(has_sinks: bool) -> None:
    """Calls torch's own function on tensors without data."""
    meta = torch.device("meta")
    memory = BlockMemory([AttentionLayer(8, 2, 64, 64, None, torch.bfloat16)], 3, 256, meta)
    empty = torch.zeros(1, 5, dtype=torch.long, device=meta)
    table = torch.zeros(2, 2, dtype=torch.int32, device=meta)
    layout = Layout(
        empty, empty, empty, empty[0], table, [ChunkSpan(0, 0, 4), ChunkSpan(4, 300, 1)], empty[0]
    )
    new = AttentionInputs(
        torch.zeros(5, 8, 64, dtype=torch.bfloat16, device=meta),
        torch.zeros(5, 2, 64, dtype=torch.bfloat16, device=meta),
        torch.zeros(5, 2, 64, dtype=torch.bfloat16, device=meta),
        scale=0.125,
        window=None,
        sinks=torch.zeros(8, dtype=torch.bfloat16, device=meta) if has_sinks else None,
    )
    with torch.inference_mode():
        output = varlen.VarlenAttention(memory).packed(layout).attend(0, new)
    assert output.shape == (5, 8, 64)
    assert output.dtype == torch.bfloat16
