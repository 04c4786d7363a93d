"""Background calls: their rate without other calls, and their effect on calls of a live client."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bench import wrk
from bench.chat_models import small_llamas
from bench.chats import PIPELINE, UNGUESSED
from bench.common import Plan, Report, at_least, at_most, percentile, progress, scratch
from bench.models import minilm
from bench.open_loop import OpenLoop
from bench.samples import texts
from bench.service import Service, serving

CLIENTS, CHATS = 128, 32
"""Background calls in flight: of embeddings and of chats."""
SECONDS, QUICK_S = 15, 3
RATE = 10.0
"""Embeddings per second of the live client."""
TOKENS = 64
EMBEDDINGS, COMPLETIONS = "/v1/embeddings", "/v1/chat/completions"
EMBEDDER, CHATTER = "embedder", "chatter"
FLEX, DEFAULT = "flex", "default"
RATE_AIM, LATENCY_AIM = 0.9, 1.2

T = TypeVar("T")


def run(plan: Plan) -> Report:
    report = Report("background", "calls with the service tier `flex` beside a live client")
    seconds = plan.sized(SECONDS, QUICK_S)
    with scratch() as place, serving(report, place) as service:
        embedder = service.deploy(minilm(), EMBEDDER, "feature-extraction", readiness="hot")
        service.settle(embedder, EMBEDDINGS, _embeddings(DEFAULT))
        chatter = service.deploy(
            small_llamas(50)[0], CHATTER, PIPELINE, readiness="hot", config=UNGUESSED
        )
        service.settle(chatter, COMPLETIONS, _chats(DEFAULT))
        for number in range(plan.rounds):
            _measure_embeddings(report, service, seconds)
            _measure_chats(report, service, seconds)
            progress(f"round {number + 1} of {plan.rounds} done")
    report.notes += [
        f"Embeddings of MiniLM: {CLIENTS} background calls in flight. The live client sends "
        f"{RATE:g} requests a second at random moments, and its latency counts from these.",
        f"Chats of a small Llama: {CHATS} background calls in flight. The live client reads one "
        "stream after the other. TTFT is its time from the request to the first token, ITL the "
        "time between two tokens.",
        "The measurements of a round alternate. All processes share the cores.",
    ]
    return report


def _embeddings(tier: str) -> list[bytes]:
    return [
        json.dumps({"model": EMBEDDER, "input": text, "service_tier": tier}).encode()
        for text in texts(64)
    ]


def _chats(tier: str) -> list[bytes]:
    return [json.dumps(_chat(text, tier)).encode() for text in texts(64)]


def _chat(text: str, tier: str) -> dict[str, object]:
    return {
        "model": CHATTER,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "service_tier": tier,
    }


def _measure_embeddings(report: Report, service: Service, seconds: int) -> None:
    url = f"{service.base_url}{EMBEDDINGS}"
    full = _rate(url, service.key, _embeddings(DEFAULT), CLIENTS, seconds)
    alone = _rate(url, service.key, _embeddings(FLEX), CLIENTS, seconds)
    _add_rates(report, "embeddings", full, alone)

    def live() -> Sequence[float]:
        loop = OpenLoop(service.base_url, EMBEDDINGS, service.key, _embeddings(DEFAULT))
        found = loop.run(RATE, seconds)
        return [found.ms(0.5), found.ms(0.99)]

    without = live()
    beside, rate = _beside(url, service.key, _embeddings(FLEX), CLIENTS, seconds, live)
    flooded, _ = _beside(url, service.key, _embeddings(DEFAULT), CLIENTS, seconds, live)
    _add_latency(report, "embeddings", without, beside, flooded)
    report.add("embeddings, flex beside live, requests a second", "req/s", rate)


def _measure_chats(report: Report, service: Service, seconds: int) -> None:
    url = f"{service.base_url}{COMPLETIONS}"
    full = _rate(url, service.key, _chats(DEFAULT), CHATS, seconds)
    alone = _rate(url, service.key, _chats(FLEX), CHATS, seconds)
    _add_rates(report, "chats", full, alone)

    def live() -> Sequence[Sequence[float]]:
        return [
            [1e3 * percentile(times, share) for share in (0.5, 0.99)]
            for times in _token_times(service, seconds)
        ]

    without = live()
    beside, rate = _beside(url, service.key, _chats(FLEX), CHATS, seconds, live)
    flooded, _ = _beside(url, service.key, _chats(DEFAULT), CHATS, seconds, live)
    for name, *found in zip(("TTFT", "ITL"), without, beside, flooded, strict=True):
        _add_latency(report, f"chats, {name}", *found)
    report.add("chats, flex beside live, requests a second", "req/s", rate)


def _rate(url: str, key: str, bodies: Sequence[bytes], clients: int, seconds: int) -> float:
    found = wrk.run(url, key, bodies, clients, seconds)
    if found.failed:
        raise RuntimeError(f"{found.failed} calls failed: {found.failure}")
    return found.answered / found.seconds


def _beside(
    url: str,
    key: str,
    bodies: Sequence[bytes],
    clients: int,
    seconds: int,
    live: Callable[[], T],
) -> tuple[T, float]:
    """Returns the latencies of a live client during other calls, and the rate of these."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_rate, url, key, bodies, clients, seconds + 3)
        time.sleep(2)
        return live(), running.result()


def _token_times(service: Service, seconds: int) -> tuple[list[float], list[float]]:
    """Returns times of streams that follow one another, in seconds: those to the first token, and
    those between two tokens.
    """
    firsts: list[float] = []
    gaps: list[float] = []
    end = time.perf_counter() + seconds
    with service.server.client(service.key) as client:
        while time.perf_counter() < end:
            body = _chat(texts(8)[len(firsts) % 8], DEFAULT) | {"stream": True}
            last = time.perf_counter()
            is_first = True
            with client.stream("POST", COMPLETIONS, json=body) as response:
                response.raise_for_status()
                for event in response.iter_raw():
                    # The first event has the role only.
                    if b'"content":"' not in event or b'"content":""' in event:
                        continue
                    now = time.perf_counter()
                    (firsts if is_first else gaps).append(now - last)
                    is_first, last = False, now
    return firsts, gaps


def _add_rates(report: Report, name: str, full: float, alone: float) -> None:
    report.add(f"{name}, default, requests a second", "req/s", full)
    report.add(f"{name}, flex alone, requests a second", "req/s", alone)
    report.add(
        f"{name}, flex alone / default",
        "x",
        alone / full,
        aim=f"≥ {RATE_AIM}",
        meets=at_least(RATE_AIM),
    )


def _add_latency(
    report: Report,
    name: str,
    without: Sequence[float],
    beside: Sequence[float],
    flooded: Sequence[float],
) -> None:
    for place, share in enumerate(("p50", "p99")):
        report.add(f"{name}, live alone, {share}", "ms", without[place])
        report.add(f"{name}, live beside flex, {share}", "ms", beside[place])
        report.add(f"{name}, live beside default, {share}", "ms", flooded[place])
        has_aim = share == "p99"
        report.add(
            f"{name}, {share}, beside flex / alone",
            "x",
            beside[place] / without[place],
            aim=f"≤ {LATENCY_AIM}" if has_aim else "",
            meets=at_most(LATENCY_AIM) if has_aim else None,
        )
