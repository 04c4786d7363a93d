"""The kernel shows a thread and the threads that it starts under its name."""

import sys
import threading
from pathlib import Path

import pytest

from stoker.replica.named_thread import NamedThread


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_threads_are_known_by_name() -> None:
    names: list[str] = []

    def look() -> None:
        thread = threading.get_native_id()
        names.append(Path(f"/proc/self/task/{thread}/comm").read_text().strip())

    def start_another() -> None:
        look()
        worker = threading.Thread(target=look)
        worker.start()
        worker.join()

    thread = NamedThread("engine", start_another)
    thread.start()
    thread.join()
    assert names == ["engine"] * 2
