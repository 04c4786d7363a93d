"""Sizes of the paged cache and its passes, on CPUs and on graphics devices."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stoker.models.llm.engines.memory import device_cache_bytes
from stoker.models.llm.engines.paged import sizes, varlen
from stoker.models.llm.engines.paged.attention import AttentionLayer

GIB = 1 << 30
LAYERS = [AttentionLayer(8, 2, 64, 64, None, torch.bfloat16)] * 4
A_TOKEN = 4 * 2 * 128 * 2
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that sets the free bytes of the graphics device."""
    monkeypatch.setattr(varlen, "supported", lambda *_: True)
    monkeypatch.setattr(varlen, "agrees", lambda *_: True)
    return lambda size: monkeypatch.setattr(sizes, "free_bytes", lambda _: size)


def test_on_a_cpu() -> None:
    plan = sizes.planned(LAYERS, 1000, 1 << 20, CPU)
    assert plan == sizes.Plan(-(-1000 // 32), 32, 1000, in_kernel=False)
    plan = sizes.planned(LAYERS, 1000, 1 << 30, CPU)
    assert plan.blocks == (1 << 30) // (32 * A_TOKEN)


def test_on_a_graphics_device(free: Any) -> None:
    free(4 * GIB)
    plan = sizes.planned(LAYERS, 1000, GIB, CUDA)
    assert plan.block_tokens == 256
    assert plan.blocks == GIB // (256 * A_TOKEN)
    assert plan.in_kernel


def test_the_cache_grows_with_the_model_and_the_device() -> None:
    assert device_cache_bytes(GIB // 4, 70 * GIB) == 2 * GIB
    assert device_cache_bytes(14 * GIB, 60 * GIB) == 14 * GIB
    assert device_cache_bytes(14 * GIB, 8 * GIB) == 2 * GIB
    assert device_cache_bytes(GIB // 4, GIB) == GIB // 4


def test_a_long_sequence_has_room(free: Any) -> None:
    free(4 * GIB)
    plan = sizes.planned(LAYERS, 1_000_000, GIB, CUDA)
    assert plan.max_length == 1_000_000 <= plan.blocks * 256


def test_sequences_end_where_the_device_ends(free: Any) -> None:
    free(4 * GIB)
    plan = sizes.planned(LAYERS, 10_000_000, GIB, CUDA)
    assert plan.blocks * 256 * A_TOKEN <= 4 * GIB - sizes.RESERVE_BYTES
    assert plan.max_length == plan.blocks * 256


@dataclass
class Sized:
    """Stands in for a model on a device: its number of parameters."""

    device: torch.device
    count: int

    def parameters(self) -> list[torch.Tensor]:
        return [torch.empty(self.count, device="meta")]


def test_tokens_of_a_step() -> None:
    assert sizes.step_tokens(Sized(CPU, 10**9)) is None
    assert sizes.step_tokens(Sized(CUDA, 135 * 10**6)) == 8192
    assert sizes.step_tokens(Sized(CUDA, 11 * 10**8)) == 6818
    assert sizes.step_tokens(Sized(CUDA, 7 * 10**9)) == 2048


def test_the_kernel_needs_half_precision_and_even_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert varlen.supported(LAYERS, CUDA)
    assert not varlen.supported(LAYERS, CPU)
    for other in (
        AttentionLayer(8, 2, 64, 64, None, torch.float32),
        AttentionLayer(8, 2, 64, 32, None, torch.bfloat16),
        AttentionLayer(8, 2, 60, 60, None, torch.bfloat16),
        AttentionLayer(8, 2, 512, 512, None, torch.bfloat16),
    ):
        assert not varlen.supported([*LAYERS, other], CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not varlen.supported(LAYERS, CUDA)
