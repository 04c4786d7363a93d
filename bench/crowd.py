"""Fifty chat models of which five fit: who answers, how soon, and who is loaded when asked."""

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.client import Connection, HttpError
from bench.common import Report, at_least, at_most, percentile, scratch
from bench.models import small_llamas
from bench.peers.chat_servers import started, transformers_serve_any
from bench.processes import awake, tree
from bench.service import Service
from tests.support.server import running

MODELS = 50
FITTING = 5
CLIENTS = 4
REQUESTS = 150
PEER_S = 120
"""The peer is asked for no longer than this; what it did not answer by then is not counted."""
TOKENS = 8
SKEW = 1.0
"""Exponent of Zipf's law: the model of rank r is asked in proportion to r to minus that."""
PATH = "/v1/chat/completions"


@dataclass
class Asked:
    """What came of one run."""

    seconds: list[float] = field(default_factory=list[float])
    failures: Counter[str] = field(default_factory=Counter[str])
    took: float = 0.0


def run(rounds: int) -> Report:
    report = Report("crowd", f"{MODELS} chat models, of which {FITTING} fit, asked by Zipf's law")
    folders = small_llamas(MODELS)
    with scratch() as place:
        need = _need(place / "one", folders[0])
        budget = int(need * (FITTING + 0.5))
        report.add("ours, memory that one model needs", "MiB", need)
        with running(place / "data", STOKER_MEMORY_BUDGET_MIB=str(budget)) as server:
            server.wait_ready()
            service = Service(server)
            deployments = [
                service.deploy(folder, folder.name, "text-generation", "cold") for folder in folders
            ]
            for at in range(rounds):
                _ours(report, service, deployments, folders, at)
        with started(transformers_serve_any(), place / "peer.log") as (base_url, pid, _):
            for at in range(rounds):
                _theirs(report, base_url, pid, folders, at)
    report.notes += [
        f"{CLIENTS} clients in closed loops, {REQUESTS} requests a round, {TOKENS} tokens each.",
        "A hit: the model was loaded when it was asked. The peer keeps every model that it has "
        f"loaded; its rounds end after {PEER_S} s.",
    ]
    return report


def _need(place: Path, folder: Path) -> float:
    """MiB that one replica is found to need."""
    with running(place, STOKER_LOG_LEVEL="warning") as server:
        server.wait_ready()
        service = Service(server)
        deployment = service.deploy(folder, folder.name, "text-generation", "cold")
        asked = _asked(server.base_url, service.key, [folder.name], [0] * 4, 60)
        if asked.failures:
            raise RuntimeError(f"the model does not answer: {asked.failures}")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = service.api.get(f"/v1/deployments/{deployment}").raise_for_status().json()
            if found["memory"]["is_measured"]:
                return found["memory"]["bytes"] / 2**20
            time.sleep(0.1)
    raise RuntimeError("the model was not measured")


def _ours(
    report: Report, service: Service, deployments: list[str], folders: list[Path], at: int
) -> None:
    before = _events(service, deployments)
    asked = _asked(
        service.base_url, service.key, [folder.name for folder in folders], _ranks(at), 600
    )
    events = _events(service, deployments) - before
    answered = len(asked.seconds)
    report.add("ours, failed requests", "", sum(asked.failures.values()), aim="0", meets=at_most(0))
    report.add("ours, hits", "%", 100 * (1 - events["loaded"] / max(1, answered)))
    # Each is told twice: a replica that stops, and a deployment without one.
    report.add("ours, evictions", "", events["evicted"] / 2)
    report.add("ours, requests a second", "1/s", answered / asked.took)
    report.add("ours, p50", "s", percentile(asked.seconds, 0.5))
    report.add("ours, p99", "s", percentile(asked.seconds, 0.99))


def _theirs(report: Report, base_url: str, pid: int, folders: list[Path], at: int) -> None:
    with awake(pid):
        names = [str(folder) for folder in folders]
        asked = _asked(base_url, "", names, _ranks(at), PEER_S)
        memory = sum(_resident(process) for process in tree(pid))
    if not asked.seconds:
        report.notes.append(f"transformers serve answered nothing: {asked.failures}")
        return
    report.add("transformers serve, failed requests", "", sum(asked.failures.values()))
    report.notes += [f"transformers serve: {error}" for error in asked.failures]
    report.add("transformers serve, requests a second", "1/s", len(asked.seconds) / asked.took)
    report.add("transformers serve, p50", "s", percentile(asked.seconds, 0.5))
    report.add("transformers serve, p99", "s", percentile(asked.seconds, 0.99))
    report.add("transformers serve, memory held at the end", "MiB", memory / 2**20)
    ours = next(one for one in report.series if one.label == "ours, requests a second")
    ratio = ours.values[at] / (len(asked.seconds) / asked.took)
    report.add("ours / theirs, requests a second", "x", ratio, aim="≥ 1", meets=at_least(1))


def _ranks(at: int) -> list[int]:
    rng = random.Random(at)
    weights = [1 / (rank + 1) ** SKEW for rank in range(MODELS)]
    return rng.choices(range(MODELS), weights, k=REQUESTS)


def _asked(base_url: str, key: str, names: list[str], ranks: list[int], most_s: float) -> Asked:
    found = Asked()
    left = list(reversed(ranks))
    lock = threading.Lock()
    began = time.perf_counter()

    def client() -> None:
        with Connection(base_url, PATH, key) as connection:
            while time.perf_counter() - began < most_s:
                with lock:
                    if not left:
                        return
                    rank = left.pop()
                connection.renew()
                asked = time.perf_counter()
                try:
                    connection.post(_body(names[rank]))
                except HttpError as error:
                    with lock:
                        found.failures[str(error)[:80]] += 1
                    continue
                with lock:
                    found.seconds.append(time.perf_counter() - asked)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.took = time.perf_counter() - began
    return found


def _body(model: str) -> bytes:
    message = {"role": "user", "content": "now such like our over man"}
    return json.dumps({"model": model, "messages": [message], "max_tokens": TOKENS}).encode()


def _events(service: Service, deployments: list[str]) -> Counter[str]:
    """How often replicas were loaded and evicted."""
    reasons: Counter[str] = Counter()
    for deployment in deployments:
        after: dict[str, Any] = {}
        while True:
            path = f"/v1/deployments/{deployment}/events"
            page = service.api.get(path, params={"limit": 100, **after}).raise_for_status().json()
            reasons.update(event["reason"] for event in page["data"])
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
    return reasons


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
