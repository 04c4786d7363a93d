"""Language models with adapters, token by token against PEFT's own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.adapters.applying import Adapters
from stoker.llm.engines.torch import TorchRunner, load
from stoker.llm.scheduler import Scheduler
from tests.adapters.support import made
from tests.llm.support import VOCABULARY, Answers, generated, submission, tiny_llama
from tests.support import causal

LOADER = "AutoModelForCausalLM"


def prompt(number: int) -> list[int]:
    return [(7 * number + 3 * place) % VOCABULARY for place in range(5 + number)]


def answered(base: Path, folder: Path, names: list[str]) -> Answers:
    """Sequences that run together, each with the adapter of its name."""
    model = load(base, torch.float32, torch.device("cpu"))
    adapters = Adapters(model, folder, 1 << 24)
    runner = TorchRunner(model, threads=1, cache_bytes=1 << 20, adapters=adapters)
    answers = Answers(Scheduler(runner, ()))
    for number, name in enumerate(names):
        own = adapters.get(name) if name else None
        answers.scheduler.submit(submission(number, prompt(number), adapter=own))
    return answers.drain()


def test_sequences_of_many_adapters_at_once(tmp_path: Path) -> None:
    base, folder = tiny_llama(tmp_path / "base"), tmp_path / "adapters"
    variants: dict[str, dict[str, Any]] = {
        "": {},
        "attention": {"target_modules": ["q_proj", "v_proj"]},
        "all": {"target_modules": "all-linear", "r": 2},
        "head": {"target_modules": ["lm_head", "down_proj"], "r": 8},
    }
    models: dict[str, Any] = {"": load(base, torch.float32, torch.device("cpu"))}
    for seed, (name, options) in enumerate(variants.items()):
        if name:
            models[name] = made(
                folder / name, base, loader=LOADER, seed=seed, task_type="CAUSAL_LM", **options
            )
    names = [name for _ in range(3) for name in variants]
    found = answered(base, folder, names)
    for number, name in enumerate(names):
        assert found.tokens[number] == generated(models[name], prompt(number), 8)
    plain = [generated(models[""], prompt(number), 8) for number in range(len(names))]
    changed = [found.tokens[number] != plain[number] for number in range(len(names))]
    assert changed == [bool(name) for name in names]


@pytest.mark.parametrize("kind", ["gpt2", "gemma3_text", "mamba"])
def test_of_other_kinds(tmp_path: Path, kind: str) -> None:
    """Linear layers that lie the other way; sliding windows; states."""
    model = causal.model(kind)
    base, folder = tmp_path / "base", tmp_path / "adapters"
    model.save_pretrained(base)
    targets = {"gpt2": ["c_attn", "c_proj"], "mamba": ["in_proj", "x_proj"]}
    options: dict[str, Any] = {"target_modules": targets.get(kind, ["q_proj", "o_proj"])}
    one = made(folder / "one", base, loader=LOADER, task_type="CAUSAL_LM", **options)
    names = ["one", "", "one", ""]
    found = answered(base, folder, names)
    for number, name in enumerate(names):
        expected = generated(one if name else model, prompt(number), 8)
        assert found.tokens[number] == expected
