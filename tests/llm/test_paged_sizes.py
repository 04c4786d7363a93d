"""Sizes of the paged cache and its passes, on CPUs and on graphics devices."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from stoker.models.llm.engines.memory import (
    claimed_cache_bytes,
    device_cache_bytes,
    work_bytes,
)
from stoker.models.llm.engines.paged import sizes, varlen
from stoker.models.llm.engines.paged.attention import AttentionLayer
from stoker.models.llm.engines.paged.memory import BlockMemory, block_bytes

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
    assert plan == sizes.Plan(-(-1000 // 32), 32, 1000, in_kernel=frozenset())
    plan = sizes.planned(LAYERS, 1000, 1 << 30, CPU)
    assert plan.blocks == (1 << 30) // (32 * A_TOKEN)


def test_on_a_graphics_device(free: Any) -> None:
    free(4 * GIB)
    plan = sizes.planned(LAYERS, 1000, GIB, CUDA)
    assert plan.block_tokens == 256
    assert plan.blocks == GIB // (256 * A_TOKEN)
    assert plan.in_kernel == {0, 1, 2, 3}


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


class TestClaim:
    """The cache stays within the replica's claim, even if the device has more memory."""

    def test_it_ends_where_the_claim_ends(self, free: Any) -> None:
        free(40 * GIB)
        plan = sizes.planned(LAYERS, 1000, 4 * GIB, CUDA, GIB)
        assert plan.blocks == GIB // (256 * A_TOKEN)
        assert plan.max_length == 1000

    def test_long_sequences_end_there_too(self, free: Any) -> None:
        free(40 * GIB)
        plan = sizes.planned(LAYERS, 10_000_000, 4 * GIB, CUDA, GIB)
        assert plan.max_length == plan.blocks * 256 <= GIB // A_TOKEN

    def test_the_device_may_have_less(self, free: Any) -> None:
        free(2 * GIB)
        plan = sizes.planned(LAYERS, 1000, 4 * GIB, CUDA, 8 * GIB)
        assert plan.blocks * 256 * A_TOKEN <= GIB

    def test_a_claim_without_room(self, free: Any) -> None:
        """Counts as a lack of memory, so that the next claim is larger."""
        free(40 * GIB)
        least = 1024 * A_TOKEN
        assert sizes.planned(LAYERS, 5000, GIB, CUDA, least).max_length == 1024
        with pytest.raises(torch.OutOfMemoryError, match="claim"):
            sizes.planned(LAYERS, 5000, GIB, CUDA, least - 1)

    def test_what_a_claim_leaves(self) -> None:
        """The estimate of a claim is the weights, the work and the cache."""
        weights = 3 * GIB
        claimed = weights + work_bytes(weights) + 2 * GIB
        assert claimed_cache_bytes(weights, claimed) == 2 * GIB
        assert claimed_cache_bytes(weights, weights) == 0


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
    assert varlen.supported(LAYERS[0], CUDA)
    assert not varlen.supported(LAYERS[0], CPU)
    for other in (
        AttentionLayer(8, 2, 64, 64, None, torch.float32),
        AttentionLayer(8, 2, 64, 32, None, torch.bfloat16),
        AttentionLayer(8, 2, 60, 60, None, torch.bfloat16),
        AttentionLayer(8, 2, 512, 512, None, torch.bfloat16),
        AttentionLayer(8, 2, 64, 64, None, torch.bfloat16, cap=50.0),
    ):
        assert not varlen.supported(other, CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not varlen.supported(LAYERS[0], CUDA)


def test_the_kernel_computes_the_layers_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    large = AttentionLayer(8, 2, 512, 512, None, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(sizes, "free_bytes", lambda _: 4 * GIB)
    for agrees, fitting in ((True, {0, 1, 2, 3}), (False, set[int]())):
        monkeypatch.setattr(varlen, "agrees", lambda *_, agrees=agrees: agrees)
        plan = sizes.planned([*LAYERS, large], 1000, GIB, CUDA)
        assert plan.in_kernel == fitting
        assert plan.block_tokens == (256 if agrees else 32)


def test_layers_that_share_keys_take_no_memory() -> None:
    shared = [*LAYERS, replace(LAYERS[0], source=1)]
    assert block_bytes(shared, 32) == block_bytes(LAYERS, 32) == 32 * A_TOKEN
    memory = BlockMemory(shared, 2, 4, CPU)
    assert memory.keys[4] is memory.keys[1]
    assert memory.values[4] is memory.values[1]
