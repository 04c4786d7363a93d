"""Threads that the kernel knows by their names."""

import ctypes
import threading
from collections.abc import Callable

from stoker.sandbox import kernel


class NamedThread(threading.Thread):
    """Daemon thread with a name that `top -H` shows.

    Threads that it starts, such as an engine's workers, inherit the name, so `top -H` shows what
    computes. The thread does not keep the process alive.

    Python itself passes the name to the kernel from 3.14 on.
    """

    def __init__(self, name: str, target: Callable[[], object]) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def run(self) -> None:
        set_name(self.name)
        super().run()


def set_name(name: str) -> None:
    """Sets the calling thread's name in the kernel, which keeps 15 bytes of it."""
    encoded = ctypes.create_string_buffer(name.encode())
    kernel.prctl(kernel.PR_SET_NAME, ctypes.addressof(encoded))
