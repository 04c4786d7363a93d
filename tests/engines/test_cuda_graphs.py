"""The end of a failed capture of a CUDA graph. No GPU is needed: torch's functions are replaced."""

import contextlib
from typing import Any

import pytest
import torch

from stoker.models.engines.cuda_graphs import CudaGraphs


class Driver:
    """Graphs and the allocator of torch, as far as a capture uses them.

    `endAllocateToPool` follows the end of the capture at the driver, which fails.
    """

    def __init__(self, *, ends_pool: bool) -> None:
        self.ends_pool = ends_pool
        """True if a failed `capture_end` ends the use of the pool, as in later versions of
        torch.
        """
        self.underway: list[int] = []
        self.references = 0
        self.pools = 0
        self.graphs: list[Any] = []

    def pool(self) -> int:
        self.pools += 1
        return self.pools

    def graph(self) -> "Graph":
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    def end(self, _device: int, pool: int) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, _device: int, _pool: int) -> None:
        self.references -= 1


class Graph:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.resets = 0
        self.fails = True

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.used_pool = pool
        self.driver.underway.append(pool)
        self.driver.references += 1

    def capture_end(self) -> None:
        if self.used_pool in self.driver.underway and (self.driver.ends_pool or not self.fails):
            self.driver.end(0, self.used_pool)
            if self.fails:
                self.driver.release(0, self.used_pool)
        if self.fails:
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    def reset(self) -> None:
        self.resets += 1


def graphs(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    for name, value in {
        "CUDAGraph": driver.graph,
        "graph_pool_handle": driver.pool,
        "Stream": lambda _device: Stream(),
        "current_stream": lambda _device: Stream(),
        "stream": lambda _stream: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", driver.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", driver.release, raising=False)
    return CudaGraphs(torch.device("cuda"))


class Stream:
    def wait_stream(self, _other: "Stream") -> None: ...


def refused() -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("ends_pool", [False, True])
def test_the_allocator_leaves_a_failed_capture(
    monkeypatch: pytest.MonkeyPatch, ends_pool: bool
) -> None:
    """Otherwise, `torch.cuda.empty_cache` fails from then on."""
    driver = Driver(ends_pool=ends_pool)
    captures = graphs(driver, monkeypatch)
    with pytest.raises(RuntimeError, match="not permitted"):
        captures.capture(refused)
    assert driver.underway == []
    assert driver.references == 0
    assert [graph.resets for graph in driver.graphs] == [1]
    assert captures._failed == driver.graphs, "the allocators keep pointers to it"


def test_other_passes_are_captured_in_another_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(ends_pool=False)
    captures = graphs(driver, monkeypatch)
    with pytest.raises(RuntimeError):
        captures.capture(refused)

    def able() -> int:
        driver.graphs[-1].fails = False
        return 7

    graph, outputs = captures.capture(able)
    captures.capture(able)
    assert (outputs, graph) == (7, driver.graphs[1])
    assert [graph.used_pool for graph in driver.graphs] == [1, 2, 2]
    assert driver.underway == []
