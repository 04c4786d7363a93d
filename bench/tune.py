"""Compares a model's speed with the prediction of `stoker tune`, for each engine and dtype that it
has measured.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import launching, load, wrk
from bench.chat_models import llama_135m
from bench.chats import ANSWER_TOKENS, PATH, PIPELINE, UNGUESSED, Chats
from bench.common import Plan, Report, clients_of, progress, scratch
from bench.contenders import at_work
from bench.models import bert_base, minilm
from bench.samples import texts
from bench.server import IMPORTED
from bench.service import Service, serving

EXAMPLES = 16
"""Number of requests that the trial sends at once, so that both measure the same."""
ALONE, TOGETHER = 1, 16
LOADS = {ALONE: 5, TOGETHER: 8}
"""Maps the number of clients to the seconds of a load."""
WITHIN = 0.15
TRIAL_S = 1200
MODEL = "tried"
RUN = ("measured", "differs")


@dataclass(frozen=True)
class Kind:
    name: str
    folder: Callable[[], Path]
    pipeline: str
    path: str
    bodies: Callable[[], list[dict[str, Any]]]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    engines: Sequence[str] = ()
    """Engines to measure. Empty means all."""


def _texts() -> list[dict[str, Any]]:
    return [{"inputs": text} for text in texts(EXAMPLES)]


def _chats() -> list[dict[str, Any]]:
    return [
        {
            "messages": [{"role": "user", "content": chat.content}],
            "max_tokens": ANSWER_TOKENS // 4,
            "temperature": 0,
            "ignore_eos": True,
        }
        for chat in Chats().draw(EXAMPLES)
    ]


KINDS = (
    Kind(
        "BERT-base tokens",
        bert_base,
        "token-classification",
        "/v1/classifications/token",
        _texts,
    ),
    Kind("MiniLM vectors", minilm, "feature-extraction", "/v1/feature-extraction", _texts),
    Kind("chat 135 M", llama_135m, PIPELINE, PATH, _chats, UNGUESSED, ["openvino"]),
)


def run(plan: Plan) -> Report:
    report = Report("tune", "predictions of `stoker tune`, against measured speed")
    report.client.name = wrk.version()
    with scratch() as place, serving(report, place / "ours") as service:
        for kind in plan.sized(KINDS, KINDS[:1]):
            bodies = kind.bodies()
            deployment = service.deploy(
                kind.folder(), MODEL, kind.pipeline, readiness="hot", config=kind.config
            )
            service.wait_status(deployment, "ready")
            # A machine's speed changes within minutes, so each round has its own trial.
            for _ in range(plan.rounds):
                for row in _said(service, kind, bodies, place):
                    _apply(service, deployment, row)
                    _measure(report, service, kind, row, bodies)
            service.api.delete(f"/v1/deployments/{deployment}").raise_for_status()
    report.notes += [
        f"In each round, `stoker tune --examples` tries {EXAMPLES} examples. Then each of its rows "
        "is applied in turn, and the same requests are sent over HTTP in closed loops.",
        "A trial runs without HTTP: alone, and in closed loops of sixteen.",
        "Alone: the mean of all examples.",
        "Rows whose answers differ are also measured.",
    ]
    return report


def _said(
    service: Service, kind: Kind, bodies: Sequence[Mapping[str, Any]], place: Path
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a trial that could be run."""
    examples = place / "examples.jsonl"
    examples.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    progress(f"{kind.name}: stoker tune …")
    variables = {**IMPORTED, "STOKER_BASE_URL": service.base_url, "STOKER_API_KEY": service.key}
    only = [word for engine in kind.engines for word in ("--engine", engine)]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "tune", MODEL, "--examples", examples, "--json", *only],
        cwd=place,
        env=launching.environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TRIAL_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"trial failed:\n{done.stderr.decode()[-2000:]}")
    for row in json.loads(done.stdout)["rows"]:
        if row["status"] in RUN:
            yield row
        else:
            progress(f"{row['engine']} {row['dtype']}: {row['status']}: {row['reason']}")


def _apply(service: Service, deployment: str, row: Mapping[str, Any]) -> None:
    service.change(deployment, "stop", "stopped")
    changes: dict[str, Any] = {"engine": row["engine"], "dtype": row["dtype"]}
    if row["weight_format"] or service.found(deployment)["config"].get("weight_format"):
        changes["config"] = {"weight_format": row["weight_format"]}
    service.api.patch(f"/v1/deployments/{deployment}", json=changes).raise_for_status()
    service.change(deployment, "start", "ready")
    service.wait_engine(deployment, row["engine"])


def _measure(
    report: Report,
    service: Service,
    kind: Kind,
    row: Mapping[str, Any],
    bodies: Sequence[Mapping[str, Any]],
) -> None:
    contender = at_work(service, kind.path, MODEL)
    encoded = contender.encoded(bodies)
    alone_s = load.alone_s(contender, encoded)
    loads = {count: load.enough_s(s, count, alone_s) for count, s in LOADS.items()}
    load.measured(contender, encoded, TOGETHER, loads[TOGETHER])
    weights = f", weights in {row['weight_format']}" if row["weight_format"] else ""
    name = f"{kind.name}, {row['engine']} {row['dtype']}{weights}"
    alone_ms = 1000 / load.measured(contender, encoded, ALONE, loads[ALONE]).rate
    rate = load.measured(contender, encoded, TOGETHER, loads[TOGETHER]).rate
    report.add(f"{name}, alone, said", "ms", row["alone_ms"])
    report.add(f"{name}, {clients_of(ALONE)}", "ms", alone_ms)
    report.add(f"{name}, together, said", "req/s", row["items_per_s"])
    report.add(f"{name}, {clients_of(TOGETHER)}", "req/s", rate)
    _add_ratio(report, f"{name}, alone: measured / said", alone_ms / row["alone_ms"])
    _add_ratio(report, f"{name}, together: measured / said", rate / row["items_per_s"])
    progress(f"{name}: {rate / row['items_per_s']:.2f} of what was said")


def _add_ratio(report: Report, label: str, value: float) -> None:
    report.add(
        label,
        "x",
        value,
        aim=f"within {WITHIN:.0%}",
        meets=lambda ratio: abs(ratio - 1) <= WITHIN,
    )
