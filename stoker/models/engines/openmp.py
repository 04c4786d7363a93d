"""Limits OpenMP's workers, of which a process should have no more than cores.

GNU's OpenMP gives each thread that opens a parallel region its own workers, and keeps them as long
as that thread lives. Once a process has more workers than cores, they no longer spin for one
another: every region ends in system calls. A BERT-base alone then takes 55 ms instead of 42, on two
cores.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

SMALL_BYTES = 64 << 20
"""Maximum bytes of the weights of a model whose probes run on one thread."""


def on_passing_thread(work: Callable[[], T]) -> T:
    """Runs the work on a temporary thread, which ends with its OpenMP workers. Returns or raises
    its outcome.

    The work must not fork a process that should outlive it: the kernel treats the thread as the
    parent.
    """
    with ThreadPoolExecutor(1, "passing") as thread:
        return thread.submit(work).result()


def enter_to_probe(model: torch.nn.Module, enter: Callable[[], None]) -> None:
    """Sets the number of threads for a model's probes on the calling thread.

    A pass of a small model takes as long on one thread as on two, and half of the processor time.

    Args:
        enter: sets the number of threads for serving. Used for larger models.
    """
    if sum(parameter.nbytes for parameter in model.parameters()) <= SMALL_BYTES:
        torch.set_num_threads(1)
    else:
        enter()


def keep_to_one_core() -> None:
    """Keeps the calling thread, which works next to the engine's, from opening parallel regions."""
    torch.set_num_threads(1)
