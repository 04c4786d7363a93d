"""Only the thread that closes a request answers it."""

import threading
from dataclasses import dataclass

from stoker.replica.open_requests import OpenRequests


@dataclass
class Asked:
    id: int
    done: bool = False


def test_only_the_first_one_closes_it() -> None:
    requests: OpenRequests[Asked] = OpenRequests()
    request = Asked(7)
    requests.open(request)
    assert (len(requests), requests[7]) == (1, request)
    assert requests.close(7) is request
    assert request.done
    assert len(requests) == 0
    assert requests.close(7) is None


def test_an_unknown_one_cannot_be_closed() -> None:
    assert OpenRequests[Asked]().close(1) is None


def test_threads_that_close_at_once_share_no_request() -> None:
    requests: OpenRequests[Asked] = OpenRequests()
    for number in range(2000):
        requests.open(Asked(number))
    closed: list[int] = []
    together = threading.Barrier(4)

    def close_all() -> None:
        together.wait()
        closed.extend(request.id for number in range(2000) if (request := requests.close(number)))

    threads = [threading.Thread(target=close_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(closed) == list(range(2000))
