"""A hundred adapters of the demo's chat model. Each gives its own answer, alone and together with
others.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from stoker.models.llm.engines.torch import load
from stoker.models.llm.scheduler import Scheduler
from tests.adapters.support import made
from tests.adapters.test_generation import RUNNERS
from tests.llm.support import Answers, generated, submission

pytestmark = pytest.mark.release

BASE = Path(__file__).parents[2] / "stoker" / "demo" / "models" / "tiny-chat"
LOADER = "AutoModelForCausalLM"
COUNT, COMPARED, TOKENS = 100, 5, 8
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    tokenizer: Any = AutoTokenizer.from_pretrained(BASE)
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def hundred(
    prompt: list[int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, list[int]]]:
    """Returns the adapters' folder and PEFT's own answers with the first few."""
    folder = tmp_path_factory.mktemp("adapters")
    expected: dict[str, list[int]] = {}
    for number in range(COUNT):
        name = f"{number:03}"
        # Adapters of all kinds: ranks, scales and modules differ.
        options: dict[str, Any] = {
            "r": (1, 2, 4, 8)[number % 4],
            "lora_alpha": 8 << number % 2,
            "target_modules": [["q_proj", "v_proj"], "all-linear", ["down_proj"]][number % 3],
        }
        model = made(folder / name, BASE, loader=LOADER, seed=number, **options)
        if number < COMPARED:
            expected[name] = generated(model.float(), prompt, TOKENS)
    expected[""] = generated(load(BASE, torch.float32, torch.device("cpu")), prompt, TOKENS)
    return folder, expected


@pytest.mark.parametrize("made_on", RUNNERS)
def test_each_answers_in_its_own_way(
    made_on: Any, hundred: tuple[Path, dict[str, list[int]]], prompt: list[int], tmp_path: Path
) -> None:
    folder, expected = hundred
    runner = made_on(BASE, folder, tmp_path / "ir")
    names = ["", *(f"{number:03}" for number in range(COUNT))]
    answers = Answers(Scheduler(runner, ()))

    def ask(name: str, identifier: int) -> None:
        adapter = runner.adapters.get(name) if name else None
        answers.scheduler.submit(submission(identifier, prompt, adapter=adapter))

    for identifier, name in enumerate(names):
        ask(name, identifier)
    answers.drain()
    together = {name: answers.tokens[identifier] for identifier, name in enumerate(names)}
    for name, tokens in expected.items():
        assert together[name] == tokens
    for identifier, name in enumerate(names, start=len(names)):
        ask(name, identifier)
        answers.drain()
        assert answers.tokens[identifier] == together[name]
    assert len({tuple(tokens) for tokens in together.values()}) == len(names)
