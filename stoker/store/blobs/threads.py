"""Threads for reading and writing blobs on this machine's disk.

They are not asyncio's own: work of other kinds that takes those for minutes keeps no upload
waiting.
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
    """Returns what a function returns that reads or writes the disk, as `asyncio.to_thread`."""
    context = contextvars.copy_context()
    call = partial(context.run, work, *args, **options)
    return await asyncio.get_running_loop().run_in_executor(_disk, call)
