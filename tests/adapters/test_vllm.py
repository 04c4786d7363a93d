"""Adapters that vLLM loads itself: Stoker rejects unsupported ones, and vLLM answers with the
others.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.models.adapters.fitting import AdapterUnfitError
from stoker.models.llm.engines.torch import load
from stoker.models.llm.engines.vllm.adapters import VllmAdapters
from stoker.models.llm.engines.vllm.channel import LoadModel
from stoker.models.llm.engines.vllm.model import ModelProcess, VllmModel
from stoker.wire.protocol import OwnEnvironment
from tests.adapters.support import made
from tests.llm.support import generated, submission, tiny_llama
from tests.llm.test_vllm import PYTHON, answered, prompt, real, tokens

LOADER = "AutoModelForCausalLM"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a base with heads of size 32, the minimum for vLLM's attention on CPUs."""
    return tiny_llama(tmp_path_factory.mktemp("base"), head_size=32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_modules": ["q_proj"], "modules_to_save": ["up_proj"]}, "modules_to_save"),
        ({"target_modules": ["q_proj"], "r": 65}, "rank of at most 64; the adapter has 65"),
        ({"target_modules": ["q_proj", "v_proj"], "alpha_pattern": {"v_proj": 1}}, "one scale"),
        ({"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 1}}, "one rank"),
        ({"target_modules": ["q_proj", "lm_head"]}, "adapted lm_head"),
    ],
)
def test_what_it_is_not_told_of(
    base: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    made(tmp_path / "one", base, loader=LOADER, **options)
    with pytest.raises(AdapterUnfitError, match=words):
        VllmAdapters(base, tmp_path).get("one")


def test_of_another_base(base: Path, tmp_path: Path) -> None:
    wide = tiny_llama(tmp_path / "wide", head_size=16)
    made(tmp_path / "adapters" / "one", wide, loader=LOADER, target_modules=["q_proj"])
    with pytest.raises(AdapterUnfitError, match="64 inputs"):
        VllmAdapters(base, tmp_path / "adapters").get("one")


@real
def test_sequences_of_many_adapters_at_once(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    variants: dict[str, dict[str, Any]] = {
        "attention": {"target_modules": ["q_proj", "v_proj"]},
        "all": {"target_modules": ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"], "r": 2},
        "scaled": {"target_modules": ["gate_proj"], "r": 16, "use_rslora": True},
    }
    models: dict[str, Any] = {"": load(base, torch.float32, torch.device("cpu"))}
    for seed, (name, options) in enumerate(variants.items()):
        models[name] = made(folder / name, base, loader=LOADER, seed=seed, **options)
    adapters = VllmAdapters(base, folder)
    environment = OwnEnvironment(python=PYTHON, cache_dir=str(tmp_path / "cache"), gpu_share=0.9)
    child = ModelProcess(environment, "cpu", threads=1)
    try:
        load_request = LoadModel(
            folder=str(base),
            device="cpu",
            dtype="float32",
            cache_bytes=64 << 20,
            gpu_share=0.9,
            adapters=str(folder),
            max_rank=64,
        )
        model = VllmModel(child, child.load(load_request), ())
        names = [name for _ in range(3) for name in models]
        submissions = [
            submission(number, prompt(40), adapter=adapters.get(name) if name else None)
            for number, name in enumerate(names)
        ]
        answers = answered(model, *submissions)
        for number, name in enumerate(names):
            assert tokens(answers[number]) == generated(models[name], prompt(40), 8), name
        assert len({tuple(tokens(answers[number])) for number in range(len(models))}) == len(models)
    finally:
        child.process.kill()
