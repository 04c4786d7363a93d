"""Adapters of a base that OpenVINO runs, over HTTP and from the start of a replica."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from stoker.models.llm.engines.torch import load
from tests.adapters.support import made
from tests.llm.support import generated, tiny_llama
from tests.support.deploying import deploy, deployment
from tests.support.server import Server

TEXT = "one two three"
TOKENS = 6
VARIANTS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all": {"target_modules": "all-linear", "r": 2},
    "late": {"target_modules": ["down_proj"], "r": 8},
}


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("adapters-openvino") as client:
        yield client


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Creates the base (with an empty name) and its adapters. Returns the folder and PEFT model of
    each.
    """
    place = tmp_path_factory.mktemp("adapters")
    base = tiny_llama(place / "base")
    variants: dict[str, tuple[Path, Any]] = {
        "": (base, load(base, torch.float32, torch.device("cpu")))
    }
    for seed, (name, options) in enumerate(VARIANTS.items()):
        config = {"loader": "AutoModelForCausalLM", "task_type": "CAUSAL_LM", **options}
        variants[name] = place / name, made(place / name, base, seed=seed, **config)
    return variants


@pytest.fixture(scope="module")
def expected(models: dict[str, tuple[Path, Any]]) -> dict[str, str]:
    tokenizer: Any = AutoTokenizer.from_pretrained(models[""][0])
    prompt = tokenizer(TEXT)["input_ids"]
    texts = {
        name: tokenizer.decode(generated(model, prompt, TOKENS), skip_special_tokens=True)
        for name, (_, model) in models.items()
    }
    assert len(set(texts.values())) == len(texts)
    return texts


def completed(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": TEXT, "max_tokens": TOKENS, "temperature": 0}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["text"]


def wait_openvino(client: httpx.Client, identifier: str) -> int:
    """Waits until the base runs on OpenVINO and returns the id of its process."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        workers = deployment(client, identifier)["workers"]
        if [worker["engine"] for worker in workers] == ["openvino"]:
            return workers[0]["pid"]
        time.sleep(0.1)
    raise AssertionError(f"it does not run on OpenVINO: {deployment(client, identifier)}")


def test_each_answers_in_its_own_way(
    server: Server,
    account: httpx.Client,
    models: dict[str, tuple[Path, Any]],
    expected: dict[str, str],
) -> None:
    """Each adapter gives its own answer on torch, during conversion, on OpenVINO and after the
    server is killed.
    """
    base = deploy(account, models[""][0], "base", engine="openvino", dtype="float32")["id"]
    for name in ("attention", "all"):
        deploy(account, models[name][0], name, adapter_of="base")
    names = ["", "attention", "all"]

    def check(asked: list[str]) -> None:
        with ThreadPoolExecutor(len(asked)) as threads:
            answers = threads.map(lambda name: completed(account, name or "base"), asked)
            assert [*answers] == [expected[name] for name in asked]

    check(names)
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(wait_openvino, account, base)
        while not done.done():
            check(names)
        pid = done.result()
    check(names * 4)
    late = deploy(account, models["late"][0], "late", adapter_of="base")["id"]
    check([*names, "late"] * 3)
    assert wait_openvino(account, base) == pid
    account.delete(f"/v1/deployments/{late}").raise_for_status()
    check(names)
    server.kill()
    server.restart()
    server.wait_ready()
    check(names)
    wait_openvino(account, base)
    check(names * 2)
