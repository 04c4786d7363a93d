"""Runs jobs in a few threads. All threads stop if one fails or the user presses Ctrl-C."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from .errors import Stopped

Job = TypeVar("Job")

# Maximum time that workers in a request may delay the end of the command.
STOP_S = 2.0


def in_parallel(
    jobs: Iterable[Job],
    worker: Callable[[], Callable[[Job], None]],
    *,
    threads: int,
    stop: threading.Event,
) -> None:
    """Runs every job. Each thread uses its own `worker()` result.

    The first error, or Ctrl-C, stops the other threads through `stop` and is raised here.
    Threads are daemons, so a thread stuck in the network does not keep the process alive.
    """
    source = iter(jobs)
    lock = threading.Lock()
    ends: queue.Queue[BaseException | None] = queue.Queue()

    def work() -> None:
        try:
            do = worker()
            while not stop.is_set():
                with lock:
                    job = next(source)
                do(job)
        except StopIteration:
            ends.put(None)
        except BaseException as error:
            ends.put(error)
        else:
            ends.put(Stopped())

    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    try:
        for thread in running:
            thread.start()
        for _ in running:
            if error := ends.get():
                raise error
    except BaseException:
        stop.set()
        deadline = time.monotonic() + STOP_S
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        raise
