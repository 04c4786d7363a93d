"""All runners, compared with `generate` of transformers token by token."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers

from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.engines.export import TOLERANCE, check, export
from stoker.models.llm.engines.ir import IR, Facts
from stoker.models.llm.engines.openvino import BLOCK_TOKENS, OpenVinoRunner
from stoker.models.llm.engines.paged.captured import EagerCapturing
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.scheduler import Chunk, Runner, Scheduler
from stoker.models.stages.stateful import NotExportableError
from stoker.wire.generation_request import Sampling
from tests.llm.support import GREEDY, VOCABULARY, Answers, generated, submission

library: Any = transformers

COUNT = 10
LENGTHS = (1, 2, 3, 31, 32, 33, 64, 65, 100)


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(1000 * seed + length)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    return load(llama, torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def expected(model: Any) -> Callable[[list[int], int], list[int]]:
    known: dict[tuple[int, ...], list[int]] = {}

    def answer(tokens: list[int], count: int = COUNT) -> list[int]:
        key = tuple(tokens)
        if len(known.get(key, ())) < count:
            known[key] = generated(model, tokens, max(count, COUNT))
        return known[key][:count]

    return answer


Expected = Callable[..., list[int]]
SharingRunner = Callable[[int], Runner]


@pytest.fixture(params=["torch", "paged", "captured", "openvino"])
def runner(request: pytest.FixtureRequest, llama: Path) -> Runner:
    """Returns a runner with an empty cache."""
    match request.param:
        case "torch":
            return TorchRunner(request.getfixturevalue("model"), threads=1, cache_bytes=1 << 20)
        case "paged":
            return paged(llama)
        case "captured":
            runner = paged(llama, capturing=EagerCapturing())
            while runner.rest():
                pass
            return runner
        case _:
            folder: Path = request.getfixturevalue("converted")
            return OpenVinoRunner(folder, threads=1, precision="f32", cache_bytes=1 << 20)


def paged(llama: Path, cache_bytes: int = 1 << 20, **options: Any) -> PagedRunner:
    # A paged runner changes the attention of its model, so it gets its own.
    own_model = load(llama, torch.float32, torch.device("cpu"))
    return PagedRunner(own_model, threads=1, cache_bytes=cache_bytes, **options)


@pytest.fixture(params=["paged", "openvino"])
def sharing_runner(request: pytest.FixtureRequest, llama: Path) -> Callable[[int], Runner]:
    """Returns a function that makes runners with a cache of this size, which sequences share."""
    if request.param == "paged":
        return lambda cache_bytes: paged(llama, cache_bytes)
    folder: Path = request.getfixturevalue("converted")
    return lambda cache_bytes: OpenVinoRunner(
        folder, threads=1, precision="f32", cache_bytes=cache_bytes
    )


def wishes(count: int = COUNT) -> Sampling:
    return Sampling(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=count
    )


def answered(runner: Runner, prompts: list[list[int]], count: int = COUNT) -> Answers:
    answers = Answers(Scheduler(runner, ()))
    for number, tokens in enumerate(prompts):
        answers.scheduler.submit(submission(number, tokens, wishes(count)))
    return answers.drain()


class TestGreedy:
    def test_prompts_of_many_lengths_at_once(self, runner: Runner, expected: Expected) -> None:
        prompts = [prompt(length) for length in LENGTHS]
        answers = answered(runner, prompts)
        assert not answers.errors
        for number, tokens in enumerate(prompts):
            assert answers.tokens[number] == expected(tokens), len(tokens)

    def test_answers_differ(self, expected: Expected) -> None:
        """Expected answers differ. Otherwise the other tests would show nothing."""
        answers = {tuple(expected(prompt(length))) for length in LENGTHS}
        assert len(answers) == len(LENGTHS)
        assert all(len(set(answer)) > COUNT // 2 for answer in answers)

    def test_prompts_in_pieces(
        self, runner: Runner, expected: Expected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 23)
        prompts = [prompt(length) for length in (1, 33, 100, 24, 65)]
        answers = answered(runner, prompts)
        for number, tokens in enumerate(prompts):
            assert answers.tokens[number] == expected(tokens), len(tokens)

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_joins_and_leaves(
        self, seed: int, runner: Runner, expected: Expected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sequences join, end and are cancelled at any time."""
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 30)
        chance = random.Random(seed)
        answers = Answers(Scheduler(runner, ()))
        requests: dict[int, tuple[list[int], int]] = {}
        cancelled: set[int] = set()
        for step in range(40):
            if step < 25 and len(requests) < 12 and chance.random() < 0.6:
                tokens, count = prompt(chance.choice(LENGTHS)), chance.choice([1, 4, COUNT])
                requests[len(requests)] = tokens, count
                answers.scheduler.submit(submission(len(requests) - 1, tokens, wishes(count)))
            if requests and chance.random() < 0.1:
                candidate = chance.choice(list(requests))
                if candidate not in answers.finish:
                    cancelled.add(candidate)
                    answers.scheduler.cancel(candidate)
            if answers.scheduler.running:
                answers.step()
        answers.drain()
        assert len(requests) > 6
        for number, (tokens, count) in requests.items():
            answer = answers.tokens.get(number, [])
            full_answer = expected(tokens, count)
            assert answer == (full_answer[: len(answer)] if number in cancelled else full_answer)

    def test_the_next_step_may_hold_one_token_of_a_prompt(
        self, runner: Runner, expected: Expected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A step may hold one token of a prompt, as with 255 drawing sequences next to a long
        prompt. The prompt does not draw yet.
        """
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 3)
        answers = Answers(Scheduler(runner, ()))
        # Two sequences draw, so one token per step is left for the prompt until the first of them
        # ends.
        answers.scheduler.submit(submission(0, prompt(2), wishes(6)))
        answers.scheduler.submit(submission(1, prompt(1), wishes(COUNT)))
        answers.step()
        answers.scheduler.submit(submission(2, prompt(31), wishes(4)))
        answers.drain()
        assert answers.tokens[0] == expected(prompt(2), 6)
        assert answers.tokens[1] == expected(prompt(1))
        assert answers.tokens[2] == expected(prompt(31), 4)

    def test_to_the_full_length(self, runner: Runner, expected: Expected) -> None:
        tokens = prompt(314)
        answers = answered(runner, [tokens], 100)
        assert answers.tokens[0] == expected(tokens, 6)
        assert answers.finish[0] == "length"

    def test_logits_are_those_of_the_model(self, runner: Runner, model: Any) -> None:
        """A prompt in two pieces gets the model's logits, next to a piece that requests no
        logits.
        """
        tokens = prompt(40)
        for number in (1, 2):
            assert runner.admit(number, tokens) == 0
            assert runner.reserve(number, len(tokens))
        nothing = runner.forward([Chunk(1, tokens[:7], 0, sampled=False)])
        assert nothing.shape == (0, VOCABULARY)
        logits = runner.forward(
            [Chunk(2, tokens[:9], 0, sampled=False), Chunk(1, tokens[7:], 7, sampled=True)]
        )
        assert logits.dtype == torch.float32
        assert logits.shape == (1, VOCABULARY)
        with torch.inference_mode():
            theirs = model(torch.tensor([tokens])).logits[0, -1]
        assert float((logits[0] - theirs).abs().max() / theirs.abs().max()) < 1e-4


class TestPromptLogprobs:
    def told(self, runner: Runner, prompts: list[list[int]], *, top: int, count: int) -> Answers:
        answers = Answers(Scheduler(runner, ()))
        for number, tokens in enumerate(prompts):
            wished = msgspec.structs.replace(wishes(count), prompt_logprobs=top)
            answers.scheduler.submit(submission(number, tokens, wished))
        return answers.drain()

    @pytest.mark.parametrize("count", [0, 3])
    def test_are_those_of_the_model(
        self, count: int, runner: Runner, model: Any, expected: Expected
    ) -> None:
        """Log probabilities are right in pieces, together, and again with the whole prompt in the
        cache.
        """
        prompts = [prompt(length) for length in (1, 2, 33, 65, 200)]
        for _ in range(2):
            answers = self.told(runner, prompts, top=3, count=count)
            for number, tokens in enumerate(prompts):
                with torch.inference_mode():
                    rows = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
                logprobs = answers.prompts.get(number, [])
                assert [logprob.token for logprob in logprobs] == tokens[1:]
                for place, logprob in enumerate(logprobs):
                    assert logprob.value == pytest.approx(
                        float(rows[place, logprob.token]), abs=1e-4
                    )
                    values = [value for _, value in logprob.top]
                    assert values == pytest.approx(rows[place].topk(3).values.tolist(), abs=1e-4)
                assert answers.tokens[number] == (expected(tokens, count) if count else [])


class TestCache:
    def test_the_same_prompts_again(
        self, sharing_runner: SharingRunner, expected: Expected
    ) -> None:
        """Repeated prompts find their blocks computed, and the answers stay the same."""
        runner = sharing_runner(1 << 21)
        prompts = [prompt(length) for length in LENGTHS]
        first = answered(runner, prompts)
        second = answered(runner, prompts)
        assert set(first.cached.values()) == {0}
        for number, tokens in enumerate(prompts):
            assert second.tokens[number] == first.tokens[number] == expected(tokens)
            whole = (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            assert second.cached[number] == whole, len(tokens)

    def test_a_conversation_that_goes_on(
        self, sharing_runner: SharingRunner, expected: Expected
    ) -> None:
        """The prompt begins with the former prompt and answer, and finds their blocks computed."""
        runner = sharing_runner(1 << 21)
        before = prompt(60)
        answer = answered(runner, [before]).tokens[0]
        after = [*before, *answer, *prompt(5, seed=2)]
        again = answered(runner, [after])
        assert again.cached[0] == 64
        assert again.tokens[0] == expected(after)

    def test_several_answers_to_one_prompt(
        self, sharing_runner: SharingRunner, expected: Expected
    ) -> None:
        runner = sharing_runner(1 << 21)
        answers = Answers(Scheduler(runner, ()))
        for number in range(3):
            after = None if number == 0 else 0
            answers.scheduler.submit(submission(number, prompt(100), wishes(), after=after))
        answers.drain()
        assert answers.cached == {0: 0, 1: 96, 2: 96}
        for number in range(3):
            assert answers.tokens[number] == expected(prompt(100))

    def test_a_cache_too_small_for_all(
        self, sharing_runner: SharingRunner, expected: Expected
    ) -> None:
        """With no bytes, the cache has room for one sequence of full length. Preempted sequences
        are computed again.
        """
        runner = sharing_runner(0)
        prompts = [prompt(length, seed) for seed, length in enumerate((65, 90, 62, 33, 58))]
        answers = answered(runner, prompts)
        for number, tokens in enumerate(prompts):
            assert answers.tokens[number] == expected(tokens)

    def test_torch_takes_no_more_than_its_cache_holds(self, model: Any, expected: Expected) -> None:
        runner = TorchRunner(model, threads=1, cache_bytes=0)
        prompts = [prompt(length, seed) for seed, length in enumerate((65, 90, 62, 33, 58))]
        answers = answered(runner, prompts)
        for number, tokens in enumerate(prompts):
            assert answers.tokens[number] == expected(tokens)

    def test_what_a_sequence_takes_of_torchs_cache(self, model: Any) -> None:
        """Two layers of keys and values of two heads of 16 float32 take 512 bytes per token."""
        runner = TorchRunner(model, threads=1, cache_bytes=512 * 1000)
        assert runner.admit(1, prompt(100)) == 0
        assert runner.usage == 0, "nobody knows what a token takes before one was computed"
        runner.forward([Chunk(1, prompt(100)[:7], 0, sampled=False)])
        assert runner.usage == pytest.approx(0.1)
        assert runner.reserve(1, 320)
        assert runner.admit(2, prompt(320)) == 0
        assert runner.admit(3, prompt(320)) == 0
        assert runner.admit(4, prompt(41)) is None
        assert runner.usage == pytest.approx(0.96)


GPT2 = {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
SLIDING: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "initializer_range": 0.3,
}
GEMMA: dict[str, Any] = SLIDING | {
    "head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}


MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "learned positions": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "sliding window": ("MistralConfig", "MistralForCausalLM", SLIDING),
    "windows and full": ("Gemma3TextConfig", "Gemma3ForCausalLM", GEMMA),
}


class TestOtherArchitectures:
    @pytest.mark.parametrize("made_runner", [TorchRunner, PagedRunner])
    @pytest.mark.parametrize("kind", MODELS)
    def test_answer_the_same(
        self, kind: str, made_runner: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config_class, model_class, sizes = MODELS[kind]
        transformers.set_seed(2)
        config = getattr(library, config_class)(vocab_size=VOCABULARY, **sizes)
        other = getattr(library, model_class)(config).eval()
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 16)
        prompts = [prompt(length) for length in (1, 3, 9, 40, 20)]
        expected = [generated(other, tokens, COUNT) for tokens in prompts]
        runner = made_runner(other, threads=1, cache_bytes=1 << 20)
        answers = answered(runner, prompts)
        token_lists = [answers.tokens[number] for number in range(len(prompts))]
        assert token_lists == expected
        assert len({tuple(token_list) for token_list in token_lists}) == len(prompts)


def size_of(folder: Path) -> int:
    """Returns the bytes of a converted model's weights."""
    return (folder / IR).with_suffix(".bin").stat().st_size


class TestExport:
    def test_facts(self, converted: Path) -> None:
        assert Facts.read(converted) == Facts(max_length=320, vocabulary=VOCABULARY)

    @pytest.mark.parametrize(
        ("weight_format", "share", "most"), [("int8", 3.5, 0.2), ("int4", 5, 1)]
    )
    def test_weights_of_fewer_bits(
        self,
        llama: Path,
        converted: Path,
        tmp_path: Path,
        weight_format: Any,
        share: float,
        most: float,
    ) -> None:
        difference = export(llama, tmp_path, threads=1, weight_format=weight_format)
        assert TOLERANCE < difference < most
        assert size_of(tmp_path) < size_of(converted) / share
        assert {path.name for path in tmp_path.iterdir()} == {
            path.name for path in converted.iterdir()
        }

    @pytest.mark.parametrize(
        "config",
        [
            library.MistralConfig(**SLIDING),
            library.Gemma3TextConfig(**GEMMA),
            library.Qwen2Config(**SLIDING, use_sliding_window=True, max_window_layers=0),
        ],
        ids=["mistral", "gemma", "qwen"],
    )
    def test_refuses_sliding_windows(self, config: Any) -> None:
        with pytest.raises(NotExportableError):
            check(config)

    @pytest.mark.parametrize(
        "config",
        [
            library.MistralConfig(**(SLIDING | {"sliding_window": None})),
            library.Qwen2Config(**SLIDING, use_sliding_window=False),
            library.LlamaConfig(),
        ],
        ids=["mistral", "qwen", "llama"],
    )
    def test_takes_those_that_do_not_use_them(self, config: Any) -> None:
        check(config)

    def test_refuses_before_it_reads_weights(self, tmp_path: Path) -> None:
        library.MistralConfig(**SLIDING).save_pretrained(tmp_path)
        with pytest.raises(NotExportableError, match="sliding"):
            export(tmp_path, tmp_path, threads=1)


def test_greedy_is_what_these_tests_ask_for() -> None:
    assert wishes(GREEDY.max_tokens or 0) == GREEDY
