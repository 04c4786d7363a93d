"""Threads for reading and writing blobs on this machine's disk.

They are separate from asyncio's own threads, which other work may occupy for minutes, so that no
upload waits.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
_disk = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs")


async def on_disk(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Runs a function that reads or writes the disk, like `asyncio.to_thread`, and returns its
    result.
    """
    context = contextvars.copy_context()
    call = partial(context.run, work, *args, **options)
    return await asyncio.get_running_loop().run_in_executor(_disk, call)
