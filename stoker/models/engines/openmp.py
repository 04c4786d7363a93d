"""OpenMP's workers, of which a process had better have no more than cores.

GNU's OpenMP gives each thread that opens a parallel region workers of its own and keeps them for as
long as that thread lives. Once a process has more of them than cores, they spin for one another no
longer: every region ends in system calls. A BERT-base alone takes 55 ms then instead of 42, on two
cores.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def on_passing_thread(work: Callable[[], T]) -> T:
    """What the work returns or raises, done on a thread that ends, and its workers with it.

    The work must fork nothing that is to outlive it: the kernel takes the thread for the parent.
    """
    with ThreadPoolExecutor(1, "passing") as thread:
        return thread.submit(work).result()


def keep_to_one_core() -> None:
    """Let the calling thread, which works beside the engine's, open no parallel region."""
    torch.set_num_threads(1)
