"""A thousand concurrent streams of one model: all must be complete, and other requests must be
answered meanwhile.
"""

import threading
import time
from dataclasses import dataclass, field

import psutil

from bench.chat_models import small_llamas
from bench.chats import Chats, ours, settled
from bench.common import Plan, Report, percentile, progress, scratch
from bench.service import Service, serving

STREAMS, QUICK_STREAMS = 1000, 50
AT_EASE = 16
PROMPT, TOKENS = 32, 16
LOOK_S = 0.05
OTHERS = "/v1/models"
MODEL = "streamed"


@dataclass
class Beside:
    """Latency of another account, and resources of the server."""

    service: Service
    others_s: list[float] = field(default_factory=list[float])
    peak_mib: float = 0.0
    is_over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        server = psutil.Process(self.service.pid)
        key = self.service.server.account_key("beside")
        with self.service.server.client(key) as client:
            while not self.is_over.wait(LOOK_S):
                began = time.perf_counter()
                client.get(OTHERS).raise_for_status()
                self.others_s.append(time.perf_counter() - began)
                self.peak_mib = max(self.peak_mib, server.memory_info().rss / 2**20)


def run(plan: Plan) -> Report:
    count = plan.sized(STREAMS, QUICK_STREAMS)
    report = Report("many_streams", f"{count} streams of one chat model at once")
    chats = Chats()
    with scratch() as place, serving(report, place) as service:
        settled(service, small_llamas(50)[0], MODEL, chats, max_queue=2 * STREAMS)
        for _ in range(plan.rounds):
            _measure(report, service, chats, count)
    report.notes += [
        f"Prompts of {PROMPT} tokens and answers of {TOKENS} tokens. Every answer must be "
        "complete. All requests are sent before the first answer ends.",
        f"Meanwhile, another account requests {OTHERS} 20 times a second.",
    ]
    return report


def _measure(report: Report, service: Service, chats: Chats, count: int) -> None:
    endpoint = ours(service, MODEL)
    easy = endpoint.load(chats.draw(4 * AT_EASE, PROMPT), AT_EASE, TOKENS)
    drawn = chats.draw(count, PROMPT)
    before = psutil.Process(service.pid).memory_info().rss / 2**20
    beside = Beside(service)
    watching = threading.Thread(target=beside.look)
    watching.start()
    try:
        measured_load = endpoint.load(drawn, count, TOKENS)
    finally:
        beside.is_over.set()
        watching.join()
    progress(f"{len(measured_load.answers)} streams in {measured_load.seconds:.1f} s")
    again = endpoint.load(chats.draw(4 * AT_EASE, PROMPT), AT_EASE, TOKENS)
    # An incomplete stream fails the benchmark.
    report.add("streams that came to their end", "", len(measured_load.answers))
    report.add(f"{AT_EASE} at once", "tok/s", easy.rate)
    report.add(f"{count} at once", "tok/s", measured_load.rate)
    report.add(f"{AT_EASE} at once, afterwards", "tok/s", again.rate)
    report.add(f"first token of {count}, p50", "s", measured_load.first_s(0.5))
    report.add(f"first token of {count}, p99", "s", measured_load.first_s(0.99))
    report.add("the server's memory, growth at most", "MiB", beside.peak_mib - before)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(
            f"another account's calls meanwhile, {name}",
            "ms",
            1e3 * percentile(beside.others_s, share),
        )
    report.client.add("streams", measured_load.client_cpu_s, measured_load.seconds)
