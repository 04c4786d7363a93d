"""Ten adapters on one base: the cost of sharing the base's batches, with OpenVINO and torch."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import load, wrk
from bench.chat_models import llama_135m
from bench.chats import Chats
from bench.common import Plan, Report, at_least, clients_of, scratch
from bench.contenders import at_work
from bench.models import bert_base
from bench.samples import SEED, texts
from bench.service import Service, serving
from stoker.models.adapters import lora

ADAPTERS, RANK, CLIENTS, SECONDS = 10, 8, 16, 15
TOKENS = 32
MODEL = "base"
AIM = 0.7


@dataclass(frozen=True)
class Kind:
    name: str
    folder: Path
    pipeline: str
    path: str
    modules: Sequence[str]
    """Names of the modules that are adapted."""
    bodies: Sequence[Mapping[str, Any]]


def run(plan: Plan) -> Report:
    report = Report("adapters", f"{ADAPTERS} adapters of rank {RANK} beside their base")
    report.client.name = wrk.version()
    for kind in _kinds():
        with scratch() as place, serving(report, place / "ours", side=kind.name) as service:
            _measure(report, plan, kind, place, service)
    report.notes += [
        f"{clients_of(CLIENTS)}, closed loops. Adapters of the queries and values of all layers, "
        "each request with the next of them, so that a batch holds most of them.",
        "The base alone and its adapters run in the same replica; in turn, a round each, first as "
        "the model runs by itself, then on torch. What the base has before it has adapters is in "
        "its own line.",
    ]
    return report


def _kinds() -> list[Kind]:
    chats = Chats().draw(64)
    answer = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return [
        Kind(
            "BERT-base tokens",
            bert_base(),
            "token-classification",
            "/v1/classifications/token",
            ["query", "value"],
            [{"inputs": text} for text in texts(64)],
        ),
        Kind(
            "chat 135 M",
            llama_135m(),
            "text-generation",
            "/v1/chat/completions",
            ["q_proj", "v_proj"],
            [{"messages": [{"role": "user", "content": chat.content}], **answer} for chat in chats],
        ),
    ]


def _measure(report: Report, plan: Plan, kind: Kind, place: Path, service: Service) -> None:
    deployment = service.deploy(kind.folder, MODEL, kind.pipeline, readiness="hot")
    contender = at_work(service, kind.path, MODEL)
    base_bodies = contender.encoded(kind.bodies)
    service.settle(deployment, kind.path, base_bodies)
    seconds = load.enough_s(plan.sized(SECONDS, 3), CLIENTS, load.alone_s(contender, base_bodies))
    for _ in range(plan.rounds):
        converted = load.measured(contender, base_bodies, CLIENTS, seconds)
        load.add(report, f"{kind.name}, base by itself", CLIENTS, converted)
    former = _processes(service, deployment)
    names = [f"adapter-{number}" for number in range(ADAPTERS)]
    for number, name in enumerate(names):
        artifact = service.push(_adapter(kind, place / name, number), "--name", name)
        body = {"model": name, "artifact_id": artifact["id"], "adapter_of": MODEL}
        service.api.post("/v1/deployments", json=body).raise_for_status()
    bodies = [
        json.dumps({**body, "model": names[number % ADAPTERS]}).encode()
        for number, body in enumerate(kind.bodies * ADAPTERS)
    ]
    for engine in ("openvino", "torch"):
        if engine == "torch":
            former = _processes(service, deployment)
            change = service.api.patch(f"/v1/deployments/{deployment}", json={"engine": engine})
            change.raise_for_status()
        _wait_anew(service, deployment, former)
        service.wait_engine(deployment, engine)
        seconds = load.enough_s(
            plan.sized(SECONDS, 3), CLIENTS, load.alone_s(contender, base_bodies)
        )
        load.measured(contender, bodies, CLIENTS, seconds)
        name = f"{kind.name} on {engine}"
        for _ in range(plan.rounds):
            base = load.measured(contender, base_bodies, CLIENTS, seconds)
            shared = load.measured(contender, bodies, CLIENTS, seconds)
            load.add(report, f"{name}, base", CLIENTS, base)
            load.add(report, f"{name}, adapters", CLIENTS, shared)
            report.add(
                f"{name}: adapters / base",
                "x",
                shared.rate / base.rate,
                aim=f"≥ {AIM:g}",
                meets=at_least(AIM),
            )


def _processes(service: Service, deployment: str) -> set[int]:
    return {worker["pid"] for worker in service.found(deployment)["workers"]}


def _wait_anew(service: Service, deployment: str, former: set[int], timeout: float = 60) -> None:
    """Waits until processes other than the former ones run a deployment."""
    deadline = time.monotonic() + timeout
    while not (current := _processes(service, deployment)) or current & former:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{deployment} runs as it did")
        time.sleep(0.1)


def _adapter(kind: Kind, folder: Path, number: int) -> Path:
    """Creates a folder in PEFT's format with small random matrices."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    drawn = torch.Generator().manual_seed(SEED + number)
    tensors: dict[str, torch.Tensor] = {}
    library: Any = safe_open
    with library(str(kind.folder / "model.safetensors"), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            module = name.removesuffix(".weight")
            if module == name or module.rpartition(".")[2] not in kind.modules:
                continue
            outputs, inputs = file.get_slice(name).get_shape()
            for which, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                matrix = torch.randn(shape, generator=drawn) * 0.02
                tensors[f"base_model.model.{module}.lora_{which}.weight"] = matrix
    folder.mkdir()
    save_file(tensors, folder / lora.WEIGHTS)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
    config |= {"target_modules": [*kind.modules], "base_model_name_or_path": kind.name}
    (folder / lora.CONFIG).write_text(json.dumps(config))
    return folder
