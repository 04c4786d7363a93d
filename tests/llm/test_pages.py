"""Memory for keys and values is taken page by page, as it is written."""

import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from stoker.models.llm.engines import pages
from stoker.models.llm.engines.openvino import OpenVinoRunner
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import load
from stoker.models.llm.runner import Runner
from stoker.models.llm.scheduler import Scheduler
from tests.llm.support import GREEDY, Answers, submission

SIZE = 64 << 20

Bytes = npt.NDArray[np.uint8]


def resident(memory: Bytes) -> int:
    """Returns the bytes of an array that are in memory."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    flags = (ctypes.c_ubyte * -(-memory.nbytes // mmap.PAGESIZE))()
    address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
    assert libc.mincore(address, size, flags) == 0
    return sum(flag & 1 for flag in flags) * mmap.PAGESIZE


def test_a_page_takes_memory_once_it_is_written() -> None:
    memory = pages.zeroed(SIZE)
    assert resident(memory) == 0
    memory[SIZE // 2] = 7
    assert resident(memory) == mmap.PAGESIZE
    assert memory.sum() == 7


def test_freed_memory_is_not_reused() -> None:
    """The allocator would clear freed memory, which takes it at once."""
    for _ in range(3):
        memory = pages.zeroed(1 << 20)
        memory[:] = 1
        del memory
    assert resident(pages.zeroed(1 << 20)) == 0


def test_too_much_is_a_lack_of_memory() -> None:
    with pytest.raises(MemoryError):
        pages.zeroed(1 << 60)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Bytes]:
    """Returns the list of the memory that caches take."""
    arrays: list[Bytes] = []
    original = pages.zeroed

    def zeroed(size: int) -> Bytes:
        arrays.append(original(size))
        return arrays[-1]

    monkeypatch.setattr(pages, "zeroed", zeroed)
    return arrays


def test_torch_takes_memory_for_its_tokens_only(llama: Path, taken: list[Bytes]) -> None:
    model = load(llama, torch.float32, torch.device("cpu"))
    check(PagedRunner(model, threads=1, cache_bytes=SIZE), taken)


def test_openvino_takes_memory_for_its_tokens_only(converted: Path, taken: list[Bytes]) -> None:
    check(OpenVinoRunner(converted, threads=1, precision="f32", cache_bytes=SIZE), taken)


def check(runner: Runner, taken: list[Bytes]) -> None:
    assert sum(memory.nbytes for memory in taken) >= SIZE // 2
    assert sum(map(resident, taken)) == 0
    answers = Answers(Scheduler(runner, ()))
    answers.scheduler.submit(submission(0, list(range(40)), GREEDY))
    assert not answers.drain().errors
    assert 0 < sum(map(resident, taken)) < SIZE // 16
