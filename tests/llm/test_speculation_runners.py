"""All runners with guesses, compared with the same runners without guesses and with `generate`."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llguidance
import msgspec
import pytest
import torch
import transformers

from stoker.models.llm.engines.openvino import OpenVinoRunner
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.interface import Output
from stoker.models.llm.matcher import Matcher, Matchers
from stoker.models.llm.runner import Runner
from stoker.models.llm.scheduler import Scheduler
from stoker.models.llm.speculation import Speculation
from stoker.wire.generation_request import Sampling
from tests.llm import test_positions as positions
from tests.llm.support import (
    GREEDY,
    VOCABULARY,
    Answers,
    foretold,
    generated,
    measured,
    submission,
    tokenizer,
)

library: Any = transformers

COUNT = 40
LENGTHS = (1, 2, 31, 33, 64, 90)


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(1000 * seed + length)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    return load(llama, torch.float32, torch.device("cpu"))


Made = Callable[[], Runner]


@pytest.fixture(params=["torch", "paged", "openvino"])
def made(request: pytest.FixtureRequest) -> Made:
    """Returns a function that makes runners with empty caches."""
    if request.param == "torch":
        model = request.getfixturevalue("model")
        return lambda: TorchRunner(model, threads=1, cache_bytes=1 << 20)
    if request.param == "paged":
        # A paged runner changes the attention of its model, so it gets its own.
        own_model = load(request.getfixturevalue("llama"), torch.float32, torch.device("cpu"))
        return lambda: PagedRunner(own_model, threads=1, cache_bytes=1 << 20)
    folder: Path = request.getfixturevalue("converted")
    return lambda: OpenVinoRunner(folder, threads=1, precision="f32", cache_bytes=1 << 20)


class Watched:
    """A scheduler that counts what its passes compute."""

    def __init__(self, runner: Runner, speculation: Speculation | None) -> None:
        self.drafts: list[list[int]] = []
        """Number of guessed tokens per sequence, for each pass."""
        forward = runner.forward

        def counted(chunks: Any) -> torch.Tensor:
            self.drafts.append([chunk.draft for chunk in chunks])
            return forward(chunks)

        runner.forward = counted
        scheduler = Scheduler(runner, (), speculation=speculation, clock=lambda: 0.0)
        self.answers = Answers(scheduler)
        self.outputs: dict[int, list[Output]] = {}

    def drain(self) -> None:
        while self.answers.scheduler.running:
            for output in self.answers.step():
                self.outputs.setdefault(output.id, []).append(output)


def greedy(count: int = COUNT) -> Sampling:
    return msgspec.structs.replace(GREEDY, max_tokens=count)


class TestGreedy:
    @pytest.mark.parametrize("lengths", [(33,), LENGTHS], ids=["alone", "in company"])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_is_what_generate_says(
        self,
        lengths: Sequence[int],
        seed: int,
        made: Made,
        model: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Guesses may be right, wrong at once, or wrong in the middle, independently for each
        row.
        """
        texts = [
            [*tokens, *generated(model, tokens, COUNT)]
            for tokens in (prompt(length, seed) for length in lengths)
        ]
        foretold(monkeypatch, texts, seed)
        watched = Watched(made(), measured())
        for number, text in enumerate(texts):
            count = COUNT - 7 * (number % 3)
            watched.answers.scheduler.submit(submission(number, text[:-COUNT], greedy(count)))
        watched.drain()
        for number, text in enumerate(texts):
            answer = text[-COUNT:][: COUNT - 7 * (number % 3)]
            assert watched.answers.tokens[number] == answer
        assert len(watched.drafts) < 0.75 * COUNT + len(lengths)
        if len(lengths) > 1:
            assert any(len({*drafts}) > 2 for drafts in watched.drafts), "all rows are alike"

    def test_who_joins_and_leaves(
        self, made: Made, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sequences join and leave while the guesses of other rows end at different places."""
        texts = [
            [*tokens, *generated(model, tokens, COUNT)]
            for tokens in (prompt(length, 5) for length in LENGTHS)
        ]
        foretold(monkeypatch, texts, 7)
        runner = made()
        watched = Watched(runner, measured())
        scheduler = watched.answers.scheduler
        for number, text in enumerate(texts):
            scheduler.submit(submission(number, text[:-COUNT], greedy()))
            for _ in range(3):
                watched.answers.step()
            if number == 3:
                scheduler.cancel(1)
        watched.answers.drain()
        for number, text in enumerate(texts):
            answer = watched.answers.tokens[number]
            assert answer == text[-COUNT:][: len(answer)]
            assert len(answer) == COUNT or number == 1
        assert runner.usage == 0

    def test_the_next_request_finds_what_was_right(self, converted: Path, model: Any) -> None:
        """Blocks that held a wrong guess are not found by its tokens."""
        with pytest.MonkeyPatch.context() as patch:
            tokens = prompt(60)
            text = [*tokens, *generated(model, tokens, COUNT)]
            foretold(patch, [text], 3)
            runner = OpenVinoRunner(converted, threads=1, precision="f32", cache_bytes=1 << 21)
            watched = Watched(runner, measured())
            watched.answers.scheduler.submit(submission(0, tokens, greedy()))
            watched.drain()
            assert watched.answers.tokens[0] == text[60:]
        after = [*text, *prompt(9)]
        again = Answers(Scheduler(runner, ()))
        again.scheduler.submit(submission(1, after, greedy(8)))
        assert again.drain().cached[1] == 96
        assert again.tokens[1] == generated(model, after, 8)

    @pytest.mark.parametrize("length", [48, 120])
    def test_up_to_the_full_length(
        self, length: int, made: Made, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sequence reaches the full length next to one that is far from it."""
        near, far = prompt(320 - length), prompt(5)
        texts = [[*tokens, *generated(model, tokens, length)] for tokens in (near, far)]
        foretold(monkeypatch, texts, length)
        watched = Watched(made(), measured())
        for number, tokens in enumerate((near, far)):
            watched.answers.scheduler.submit(submission(number, tokens, greedy(length)))
        watched.drain()
        assert watched.answers.tokens[0] == texts[0][320 - length :]
        assert watched.answers.tokens[1] == texts[1][5:]


KINDS: dict[str, dict[str, Any]] = {
    "penalties": {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {7: 3.0, 9: -5.0}},
    "log probabilities": {"logprobs": 3},
    "of the prompt, too": {"logprobs": 0, "prompt_logprobs": 2},
    "drawn": {"temperature": 0.8, "seed": 5},
    "of few": {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "seed": 6},
    "at least": {"temperature": 0.9, "seed": 7, "min_tokens": 30},
}


def held_to_a_form(count: int) -> list[Matcher]:
    """Returns matchers for the start of an object with a list, as used for constrained answers."""
    schema = (
        '{"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["xyz"]}}}}'
    )
    known = Matchers(tokenizer(), VOCABULARY, [2])
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    return [known.matcher(grammar) for _ in range(count)]


class TestAnyWish:
    def answered(
        self, runner: Runner, speculation: Speculation | None, wishes: Sampling, *, form: bool
    ) -> Watched:
        watched = Watched(runner, speculation)
        matchers: list[Any] = [None] * 3
        if form:
            matchers = list(held_to_a_form(3))
        for number, length in enumerate((9, 40, 70)):
            watched.answers.scheduler.submit(
                submission(number, prompt(length), wishes, matcher=matchers[number])
            )
        watched.drain()
        return watched

    @pytest.mark.parametrize("kind", [*KINDS, "a form", "a form, drawn"])
    def test_changes_nothing(self, kind: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        more = KINDS.get(kind, {"temperature": 0.9, "seed": 3} if "drawn" in kind else {})
        wishes = msgspec.structs.replace(greedy(), **more)
        form = kind.startswith("a form")
        expected = self.answered(made(), None, wishes, form=form)
        texts = [
            [*prompt(length), *expected.answers.tokens[number]]
            for number, length in enumerate((9, 40, 70))
        ]
        foretold(monkeypatch, texts, 11)
        speculated = self.answered(made(), measured(), wishes, form=form)
        assert speculated.answers.tokens == expected.answers.tokens
        assert speculated.answers.finish == expected.answers.finish
        for number in range(3):
            for name in ("logprobs", "prompt"):
                logprobs, known = (
                    [
                        logprob
                        for output in each.outputs[number]
                        for logprob in getattr(output, name)
                    ]
                    for each in (speculated, expected)
                )
                assert [logprob.token for logprob in logprobs] == [
                    logprob.token for logprob in known
                ]
                assert [logprob.value for logprob in logprobs] == pytest.approx(
                    [logprob.value for logprob in known], abs=1e-4
                )
        assert len(speculated.drafts) < 0.85 * len(expected.drafts)


@pytest.fixture(scope="module")
def circling(llama: Path) -> Any:
    """Returns a model that depends little on its input, so it soon repeats itself."""
    model = load(llama, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.0005
            layer.mlp.down_proj.weight *= 0.0005
    return model


class TestGoesInCircles:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_several_tokens_a_pass(self, circling: Any, dtype: torch.dtype) -> None:
        """Guesses come from the model's own output, not from `foretold`."""
        model = circling.to(dtype)
        prompts = [prompt(length) for length in (5, 20, 50)]
        passes: list[int] = []
        answers: list[dict[int, list[int]]] = []
        for speculation in (None, measured()):
            watched = Watched(TorchRunner(model, threads=1, cache_bytes=1 << 20), speculation)
            for number, tokens in enumerate(prompts):
                watched.answers.scheduler.submit(submission(number, tokens, greedy(120)))
            watched.drain()
            passes.append(len(watched.drafts))
            answers.append(watched.answers.tokens)
        assert answers[0] == answers[1]
        assert passes[0] >= 120
        assert passes[1] < 80


class TestModels:
    @pytest.mark.parametrize("kind", positions.MODELS)
    def test_that_grow_over_a_border(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such models are computed again beyond a border. No guess may cross it."""
        name, sizes = positions.MODELS[kind]
        model = positions.made(name, sizes)
        prompts = [positions.prompt(length) for length in positions.LENGTHS]
        texts = [[*tokens, *positions.generated(model, tokens)] for tokens in prompts]
        foretold(monkeypatch, texts, 2)
        watched = Watched(TorchRunner(model, threads=1, cache_bytes=1 << 24), measured())
        for number, tokens in enumerate(prompts):
            watched.answers.scheduler.submit(submission(number, tokens, greedy(positions.COUNT)))
        watched.drain()
        for number, text in enumerate(texts):
            assert watched.answers.tokens[number] == text[-positions.COUNT :]
        assert any(any(drafts) for drafts in watched.drafts)

    @pytest.mark.parametrize(
        ("config", "retracts"),
        [
            (library.GPT2Config(n_positions=128, n_embd=32, n_layer=2, n_head=2), True),
            (
                library.GPTNeoConfig(
                    hidden_size=32,
                    num_layers=2,
                    num_heads=2,
                    attention_types=[[["global", "local"], 1]],
                    window_size=8,
                    max_position_embeddings=128,
                ),
                True,
            ),
            (library.BloomConfig(hidden_size=32, n_layer=2, n_head=4), True),
            (library.MptConfig(d_model=32, n_layers=2, n_heads=4, max_seq_len=128), True),
            (
                library.MistralConfig(
                    hidden_size=32,
                    intermediate_size=64,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=128,
                    sliding_window=8,
                ),
                False,
            ),
            (library.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4), False),
        ],
        ids=lambda value: getattr(value, "model_type", ""),
    )
    def test_of_many_kinds(
        self, config: Any, retracts: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Models with caches that cannot be cut back get no guesses."""
        transformers.set_seed(2)
        config.update({"vocab_size": VOCABULARY, "initializer_range": 0.3})
        model = library.AutoModelForCausalLM.from_config(config).eval()
        prompts = [prompt(length) for length in (3, 9, 40, 20)]
        texts = [[*tokens, *generated(model, tokens, 24)] for tokens in prompts]
        foretold(monkeypatch, texts, 4)
        runner = TorchRunner(model, threads=1, cache_bytes=1 << 20)
        watched = Watched(runner, measured())
        for number, tokens in enumerate(prompts):
            watched.answers.scheduler.submit(submission(number, tokens, greedy(24)))
        watched.drain()
        for number, text in enumerate(texts):
            assert watched.answers.tokens[number] == text[-24:]
        assert runner.can_retract is retracts
        assert any(any(drafts) for drafts in watched.drafts) is retracts
