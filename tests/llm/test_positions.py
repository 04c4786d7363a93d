"""Models with positions that depend on the sequence's length, compared with `generate` token by
token.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.engines.export import export
from stoker.models.llm.engines.positions import UNSTATED_LENGTH, longest
from stoker.models.llm.engines.torch import TorchRunner
from stoker.models.llm.scheduler import Scheduler
from stoker.models.stages.stateful import NotExportableError
from tests.llm.support import GREEDY, VOCABULARY, Answers, submission

library: Any = transformers

BORDER, POSITIONS, COUNT = 48, 192, 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FACTORS = [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0]
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * len(FACTORS),
    "long_factor": FACTORS,
    "original_max_position_embeddings": BORDER,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi 3": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": BORDER}),
    # Its factors stay. The passes decide a scale instead.
    "phi moe": (
        "Phimoe",
        {
            "rope_parameters": LONG | {"short_mscale": 1.1, "long_mscale": 1.4},
            "original_max_position_embeddings": BORDER,
            "num_local_experts": 2,
        },
    ),
    # `generate` would continue with keys of the short factors, so it runs without a cache here.
    "llama": ("Llama", {"rope_parameters": LONG}),
}
# Below, at and above the border. Some cross it while they draw.
LENGTHS = (5, 20, 47, 48, 49, 60, 44, 100, 41, 150, 37, 36)


def made(kind: str, sizes: dict[str, Any]) -> Any:
    transformers.set_seed(4)
    config = getattr(library, f"{kind}Config")(**SIZES | sizes)
    return getattr(library, f"{kind}ForCausalLM")(config).eval()


def prompt(length: int) -> list[int]:
    chance = random.Random(length)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


def generated(model: Any, tokens: list[int]) -> list[int]:
    with torch.inference_mode():
        token_ids = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            max_new_tokens=COUNT,
            do_sample=False,
            use_cache=not isinstance(model, library.LlamaForCausalLM),
        )
    return token_ids[0, len(tokens) :].tolist()


def answered(
    model: Any, prompts: Sequence[list[int]], cache_bytes: int = 1 << 24
) -> list[list[int]]:
    runner = TorchRunner(model, threads=1, cache_bytes=cache_bytes)
    answers = Answers(Scheduler(runner, ()))
    for number, tokens in enumerate(prompts):
        answers.scheduler.submit(submission(number, tokens, GREEDY))
    answers.drain()
    assert not answers.errors
    assert runner.usage == 0
    return [answers.tokens[number] for number in range(len(prompts))]


@pytest.mark.parametrize("kind", MODELS)
class TestLongRope:
    @pytest.fixture
    def model(self, kind: str) -> Any:
        return made(*MODELS[kind])

    @pytest.fixture
    def expected(self, model: Any) -> list[list[int]]:
        return [generated(model, prompt(length)) for length in LENGTHS]

    def test_alone(self, model: Any, expected: list[list[int]]) -> None:
        assert [answered(model, [prompt(length)])[0] for length in LENGTHS] == expected

    def test_in_pieces(
        self, model: Any, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 16)
        assert [answered(model, [prompt(length)])[0] for length in LENGTHS] == expected

    @pytest.mark.parametrize("step", [256, 23])
    def test_short_and_long_ones_together(
        self, model: Any, expected: list[list[int]], step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduling, "STEP_TOKENS", step)
        assert answered(model, [prompt(length) for length in LENGTHS]) == expected

    def test_in_a_cache_too_small_for_all(self, model: Any, expected: list[list[int]]) -> None:
        assert answered(model, [prompt(length) for length in LENGTHS], cache_bytes=0) == expected

    def test_the_factors_matter(self, model: Any, kind: str, expected: list[list[int]]) -> None:
        """The factors change the answers. Otherwise the other tests would show nothing."""
        name, sizes = MODELS[kind]
        parameters = sizes["rope_parameters"]
        same = {"long_factor": parameters["short_factor"]}
        if "long_mscale" in parameters:
            same["long_mscale"] = parameters["short_mscale"]
        otherwise = made(name, sizes | {"rope_parameters": parameters | same})
        otherwise.load_state_dict(model.state_dict())
        answers = [generated(otherwise, prompt(length)) for length in LENGTHS]
        for length, ours, theirs in zip(LENGTHS, answers, expected, strict=True):
            assert (ours == theirs) == (length + COUNT - 1 <= BORDER), length


class TestDynamic:
    """Dynamic scaling: beyond its own length the model rescales with every token, so sequences end
    before.
    """

    SIZES: dict[str, Any] = {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    }

    def test_answers_up_to_the_unscaled_length(self) -> None:
        model = made("Llama", self.SIZES)
        lengths = (7, 90, POSITIONS - 2, 40, POSITIONS - COUNT)
        expected = [generated(made("Llama", self.SIZES), prompt(length)) for length in lengths]
        expected[2] = expected[2][:2]
        for _ in range(2):
            assert answered(model, [prompt(length) for length in lengths]) == expected


class TestLengths:
    def test_of_kinds_that_name_it_otherwise(self) -> None:
        assert longest(library.GPT2Config(n_positions=77)) == 77
        assert longest(library.MptConfig(max_seq_len=99)) == 99
        assert longest(library.RwkvConfig(context_length=55)) == 55
        assert longest(library.BloomConfig(seq_length=44)) == 44
        assert longest(library.MambaConfig()) == UNSTATED_LENGTH


def test_is_not_converted(tmp_path: Path) -> None:
    """LongRoPE is not exported. No factors are right for a pass with both kinds of sequences."""
    made(*MODELS["phi 3"]).save_pretrained(tmp_path)
    with pytest.raises(NotExportableError, match="LongRoPE"):
        export(tmp_path, tmp_path, threads=1)
