import threading

import pytest

from stoker.client.errors import Stopped
from stoker.client.parallel import in_parallel


def test_does_every_job_once() -> None:
    done: list[int] = []
    in_parallel(range(100), lambda: done.append, threads=4, stop=threading.Event())
    assert sorted(done) == list(range(100))


def test_each_thread_makes_its_worker_once() -> None:
    made: list[list[int]] = []

    def worker():
        made.append([])
        return made[-1].append

    in_parallel(range(100), worker, threads=4, stop=threading.Event())
    assert len(made) == 4
    assert sum(map(len, made)) == 100


def test_the_first_error_ends_the_others() -> None:
    stop = threading.Event()

    def do(job: int) -> None:
        if job == 3:
            raise ValueError("three")
        if job > 3 and stop.wait(10):
            raise Stopped

    with pytest.raises(ValueError, match="three"):
        in_parallel(range(1000), lambda: do, threads=4, stop=stop)
    assert stop.is_set()
