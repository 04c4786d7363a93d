"""Threads that the kernel knows by their names."""

import ctypes
import threading
from collections.abc import Callable

from stoker.sandbox import kernel


class NamedThread(threading.Thread):
    """A thread that `top -H` shows by its name, and what it starts, such as an engine's workers,
    too: whoever looks sees what computes. It is no reason to stay.

    Python itself tells the kernel from 3.14 on.
    """

    def __init__(self, name: str, target: Callable[[], object]) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def run(self) -> None:
        # The kernel keeps 15 bytes of it.
        name = ctypes.create_string_buffer(self.name.encode())
        kernel.prctl(kernel.PR_SET_NAME, ctypes.addressof(name))
        super().run()
