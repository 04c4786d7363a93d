"""Kinds of language models on the torch engine, compared with `generate`, alone and together.

`python -m tests.llm.test_families` compares all kinds that are served and prints those that differ.
"""

import random
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.model_types import ENCODERS, TEXT, TEXT_GENERATION, UNFIT
from stoker.models.llm.scheduler import Chunk, Scheduler
from stoker.models.tasks.registry import PIPELINES
from tests.llm.support import GREEDY, VOCABULARY, Answers, generated, submission
from tests.support import causal

library: Any = transformers

LENGTHS = (3, 60, 9, 12, 20)
PIECES = 17
WRITERS = (
    "bert",
    "bloom",
    "deepseek_v32",
    "falcon_mamba",
    "gemma3n_text",
    "granitemoehybrid",
    "jamba",
    "mamba",
    "mamba2",
    "minimax",
    "mpt",
    "opt",
    "qwen3_next",
    "roformer",
    "rwkv",
    "xlstm",
    "zamba2",
)
"""A kind or two of each sort: biases by distance, states that pieces can and cannot continue from,
own cache classes, and positions that the model counts itself.
"""
STATES = ("mamba", "mamba2", "rwkv", "xlstm")


def prompt(length: int) -> list[int]:
    chance = random.Random(length)
    return [chance.randrange(5, VOCABULARY) for _ in range(length)]


def loaded(model_type: str, folder: Path) -> Any:
    """Returns a model of this kind, as loaded from its folder."""
    causal.model(model_type).save_pretrained(folder)
    model = load(folder, torch.float32, torch.device("cpu"))
    model.generation_config.eos_token_id = None
    return model


def answered(model: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    answers = Answers(Scheduler(TorchRunner(model, threads=1, cache_bytes=1 << 24), ()))
    for number, tokens in enumerate(prompts):
        answers.scheduler.submit(submission(number, tokens, GREEDY))
    answers.drain()
    assert not answers.errors
    return [answers.tokens[number] for number in range(len(prompts))]


def compared(model_type: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(model_type, folder)
    prompts = [prompt(length) for length in LENGTHS]
    expected = [generated(model, tokens, GREEDY.max_tokens or 0) for tokens in prompts]
    assert len({tuple(tokens) for tokens in expected}) >= len(prompts) - 1, (
        "the prompts do not matter"
    )
    assert [answered(model, [tokens])[0] for tokens in prompts] == expected, "alone"
    assert answered(model, prompts) == expected, "together"
    monkeypatch.setattr(scheduling, "STEP_TOKENS", PIECES)
    assert answered(model, prompts) == expected, "in pieces"


@pytest.mark.parametrize("model_type", WRITERS)
def test_answers_as_transformers_does(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(model_type, tmp_path, monkeypatch)


def test_every_kind_was_compared_or_has_a_reason() -> None:
    """A new release of transformers has new kinds. Compare them, then name them in families.py."""
    patterns = PIPELINES[TEXT_GENERATION]
    known = {
        model_type
        for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    assert TEXT.isdisjoint(UNFIT)
    # In addition, parts of models are listed by the names under which they are saved.
    assert set(UNFIT) - known == {"emu3_text_model", "mllama_text_model"}
    assert set(UNFIT) | TEXT == known | set(UNFIT)


@pytest.mark.parametrize("model_type", sorted(ENCODERS))
def test_encoders_read_from_both_ends_unless_they_are_told_to_write(model_type: str) -> None:
    """Encoders are refused unless they are configured as decoders, because they read later tokens
    too.
    """
    config = causal.config(model_type)
    original, other = torch.tensor([prompt(12), [*prompt(12)[:-1], 7]])
    for config.is_decoder in (True, False):
        model = library.AutoModelForCausalLM.from_config(config).eval()
        with torch.inference_mode():
            begins = [model(tokens[None]).logits[0, 0] for tokens in (original, other)]
        assert torch.equal(*begins) == config.is_decoder


class TestFootprint:
    @pytest.mark.parametrize("model_type", STATES)
    def test_of_a_state_is_the_same_however_long(self, model_type: str) -> None:
        runner = TorchRunner(causal.model(model_type), threads=1, cache_bytes=1 << 20)
        usages: list[float] = []
        for number, length in enumerate((2, 200)):
            runner.admit(number, prompt(length))
            runner.forward([Chunk(number, prompt(length), 0, sampled=True)])
            usages.append(runner.usage)
            runner.release(number)
        assert usages[0] == usages[1] > 0
        assert runner.usage == 0

    def test_of_latent_attention(self) -> None:
        """DeepSeek's keys and values have other sizes than its configuration's heads say."""
        model = causal.model("deepseek_v3")
        runner = TorchRunner(model, threads=1, cache_bytes=1 << 20)
        runner.admit(0, prompt(50))
        runner.forward([Chunk(0, prompt(50), 0, sampled=True)])
        with torch.inference_mode():
            layers = model(torch.tensor([prompt(50)]), use_cache=True).past_key_values.layers
        cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        assert runner.usage == pytest.approx(cache_bytes / (1 << 20))


def main() -> int:
    failed = 0
    for model_type in sys.argv[1:] or sorted(TEXT):
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
            try:
                compared(model_type, Path(folder), monkeypatch)
            except Exception as error:
                failed += 1
                print(f"{model_type}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print(f"{failed} kinds differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
