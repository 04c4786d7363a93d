"""The paged runner: kinds of models, positions, memory and captured steps."""

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.engines.recording_guard import RecordingGuard
from stoker.models.llm import batch_invariance
from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.engines.paged import attention
from stoker.models.llm.engines.paged.captured import EagerCapturing
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.runner import Runner
from stoker.models.llm.scheduler import Chunk, Scheduler
from stoker.replica.language_worker import LanguageWorker
from stoker.wire.flight import FlightRecord, read_recording
from stoker.wire.generation_request import Generation, Sampling
from stoker.wire.protocol import Generate, RequestResult
from tests.llm import test_positions as positions
from tests.llm.support import GREEDY, VOCABULARY, Answers, generated, submission, tokenizer
from tests.support import causal

library: Any = transformers

LENGTHS = (3, 60, 9, 12, 20)
PAGED = (
    "codegen",
    "cohere2",
    "deepseek_v3",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "llama",
    "mistral",
    "mixtral",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)
"""Kinds with windows, experts, learned positions, shared heads, values of another size, caps,
sinks, layers that share keys, and attention that is a method.
"""
OTHERS = ("bloom", "doge", "jamba", "llama4_text", "mamba", "qwen3_next")
"""Kinds with biases by distance, masks of their own, states, and their own cache classes."""


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(1000 * seed + length)
    return [chance.randrange(5, VOCABULARY) for _ in range(length)]


def kind(model_type: str) -> Any:
    model = causal.model(model_type)
    model.generation_config.eos_token_id = None
    return model


def answered(runner: Runner, prompts: Sequence[list[int]]) -> list[list[int]]:
    answers = Answers(Scheduler(runner, ()))
    for number, tokens in enumerate(prompts):
        answers.scheduler.submit(submission(number, tokens, GREEDY))
    answers.drain()
    assert not answers.errors
    assert runner.usage == 0
    return [answers.tokens[number] for number in range(len(prompts))]


class TestKinds:
    def chosen(self, model: Any) -> PagedRunner | None:
        before = TorchRunner(model, threads=1, cache_bytes=1 << 22)
        return batch_invariance.paged(
            before,
            lambda: PagedRunner(model, threads=1, cache_bytes=1 << 22, positions=before.rotary),
        )

    @pytest.mark.parametrize("model_type", PAGED)
    def test_answers_as_generate_does(
        self, model_type: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = kind(model_type)
        prompts = [prompt(length) for length in LENGTHS]
        expected = [generated(model, tokens, 8) for tokens in prompts]
        runner = self.chosen(model)
        assert runner
        assert [answered(runner, [tokens])[0] for tokens in prompts] == expected, "alone"
        assert answered(runner, prompts) == expected, "together"
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 17)
        assert answered(runner, prompts) == expected, "in pieces"

    @pytest.mark.parametrize("model_type", OTHERS)
    def test_others_keep_their_attention(self, model_type: str) -> None:
        model = kind(model_type)
        prompts = [prompt(length) for length in LENGTHS]
        expected = [generated(model, tokens, 8) for tokens in prompts]
        assert self.chosen(model) is None
        assert model.config._attn_implementation != attention.NAME
        runner = TorchRunner(model, threads=1, cache_bytes=1 << 22)
        batch_invariance.find(runner)
        assert answered(runner, prompts) == expected

    def test_a_model_that_differs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A Llama that mixes the tokens of a pass stands in for such a model."""
        model = kind("llama")
        forward = model.model.norm.forward
        monkeypatch.setattr(
            model.model.norm, "forward", lambda states: forward(states) + states.mean(1, True)
        )
        assert self.chosen(model) is None

    def test_a_window_that_only_the_mask_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Prompts shorter than the window would not reveal it."""
        model = kind("llama")
        monkeypatch.setattr(model.config, "sliding_window", causal.POSITIONS - 1, raising=False)
        with pytest.raises(attention.UnfitAttentionError, match="windows"):
            PagedRunner(model, threads=1, cache_bytes=1 << 20)
        assert model.config._attn_implementation != attention.NAME

    def test_a_window_as_wide_as_any_sequence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such a window hides no token."""
        model = kind("llama")
        monkeypatch.setattr(model.config, "sliding_window", causal.POSITIONS, raising=False)
        assert self.chosen(model)

    @pytest.mark.parametrize("model_type", ["gemma2", "gemma4_text", "gpt_neo", "gpt_oss"])
    def test_preempted_and_shared(self, model_type: str) -> None:
        """A small cache, captured steps, and prompts with the same beginning."""
        model = kind(model_type)
        prompts = [prompt(length, seed) for seed, length in enumerate((65, 90, 62, 33, 120, 80))]
        prompts += [[*prompts[4][:100], *prompt(9)]]
        expected = [generated(model, tokens, 8) for tokens in prompts]
        runner = PagedRunner(model, threads=1, cache_bytes=0, capturing=EagerCapturing())
        assert answered(runner, prompts) == expected
        while runner.rest():
            pass
        assert answered(runner, prompts) == expected
        assert runner.admit(0, prompts[6]) == 96

    def test_half_precision(self, llama: Path) -> None:
        model = load(llama, torch.bfloat16, torch.device("cpu"))
        assert self.chosen(model)

    def test_positions_in_single_precision(self, tmp_path: Path) -> None:
        """CodeGen computes its queries and keys with them."""
        kind("codegen").save_pretrained(tmp_path)
        assert self.chosen(load(tmp_path, torch.bfloat16, torch.device("cpu")))

    @pytest.mark.parametrize("name", positions.MODELS)
    def test_positions_that_depend_on_the_length(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Short and long sequences share steps, and some cross the border while they draw."""
        model = positions.made(*positions.MODELS[name])
        prompts = [positions.prompt(length) for length in positions.LENGTHS]
        expected = [positions.generated(model, tokens) for tokens in prompts]
        monkeypatch.setattr(model.config, "sliding_window", None, raising=False)
        runner = PagedRunner(model, threads=1, cache_bytes=1 << 24, capturing=EagerCapturing())
        while runner.rest():
            pass
        assert answered(runner, prompts) == expected


Made = Callable[..., PagedRunner]


@pytest.fixture
def made(llama: Path) -> Made:
    """Returns a function that makes paged runners of one Llama."""
    model = load(llama, torch.float32, torch.device("cpu"))

    def make(cache_bytes: int = 1 << 20, **options: Any) -> PagedRunner:
        return PagedRunner(model, threads=1, cache_bytes=cache_bytes, **options)

    return make


@pytest.fixture
def expected(llama: Path) -> Callable[[list[int]], list[int]]:
    model = load(llama, torch.float32, torch.device("cpu"))
    return lambda tokens: generated(model, tokens, 8)


class TestMemory:
    def test_what_other_sequences_left_behind(
        self, made: Made, expected: Callable[[list[int]], list[int]]
    ) -> None:
        """Blocks may hold anything behind a sequence's end, even infinity."""
        runner = made(capturing=EagerCapturing())
        for part in (*runner._memory.keys, *runner._memory.values):
            part[:-1] = torch.inf
        prompts = [prompt(length) for length in (5, 40, 33, 100)]
        answers = [expected(tokens) for tokens in prompts]
        assert answered(runner, prompts) == answers
        while runner.rest():
            pass
        assert answered(runner, prompts) == answers

    def test_pages_are_allocated_as_they_are_written(self, made: Made) -> None:
        process = psutil.Process()
        before = process.memory_info().rss
        runner = made(1 << 30)
        assert runner._cache.free == (1 << 30) // (512 * 32)
        assert process.memory_info().rss - before < 64 << 20

    @pytest.mark.parametrize("is_captured", [False, True])
    def test_a_full_cache(
        self, is_captured: bool, made: Made, expected: Callable[[list[int]], list[int]]
    ) -> None:
        """Preempted sequences are computed again, next to sequences that are cancelled."""
        runner = made(0, capturing=EagerCapturing() if is_captured else None)
        while runner.rest():
            pass
        prompts = [prompt(length, seed) for seed, length in enumerate((65, 90, 62, 33, 58, 80))]
        answers = Answers(Scheduler(runner, ()))
        for number, tokens in enumerate(prompts):
            answers.scheduler.submit(submission(number, tokens, GREEDY))
        answers.step()
        answers.scheduler.cancel(0)
        answers.drain()
        assert runner.usage == 0
        for number, tokens in enumerate(prompts[1:], start=1):
            assert answers.tokens[number] == expected(tokens)

    def test_cancelled_while_its_prompt_is_computed(
        self,
        made: Made,
        expected: Callable[[list[int]], list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 40)
        runner = made()
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(0, prompt(200), GREEDY))
        answers.step()
        answers.step()
        answers.scheduler.cancel(0)
        assert runner.usage == 0
        # It begins with the cancelled prompt, of which some blocks were computed.
        again = [*prompt(200)[:100], *prompt(9)]
        answers.scheduler.submit(submission(1, again, GREEDY))
        answers.drain()
        assert answers.cached[1] == 64
        assert answers.tokens[1] == expected(again)

    def test_no_step_is_captured_before_a_pass_with_images(
        self, made: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the device were lost, the images would be blamed."""
        runner = made(capturing=EagerCapturing())
        captured: list[bool] = []
        monkeypatch.setattr(runner._captured, "capture_between", lambda: captured.append(True))
        monkeypatch.setattr(runner._images, "compute", lambda *_: torch.zeros(1, VOCABULARY))
        runner.admit(1, prompt(9), {"pixel_values": torch.zeros(1)})
        assert runner.reserve(1, 9)
        runner.forward([Chunk(1, prompt(9), 0, True)])
        assert not captured

    def test_logits_are_on_the_models_device(self, made: Made) -> None:
        runner = made()
        assert runner.admit(1, prompt(7)) == 0
        assert runner.reserve(1, 7)
        logits = runner.forward([Chunk(1, prompt(7), 0, sampled=True)])
        assert logits.device == runner.model.device
        assert logits.dtype == torch.float32


def test_a_replica_captures_steps_after_its_first_answer(made: Made, tmp_path: Path) -> None:
    """Nothing is captured before. Requests that arrive meanwhile are answered."""
    tokenizer().save_pretrained(tmp_path)
    runner = made(capturing=EagerCapturing())
    steps = runner._captured
    assert steps
    sent = queue.SimpleQueue[Any]()
    captured = threading.Event()
    capture = steps.capture_idle

    def watched() -> bool:
        captured.set()
        return capture()

    steps.capture_idle = watched
    worker = LanguageWorker(
        Scheduler(runner, ()),
        Prompts(tmp_path, max_length=64, vocabulary=VOCABULARY),
        lambda *message: sent.put(message),
        FlightRecord(tmp_path / "flight"),
    )
    worker.start()
    try:
        for number in range(3):
            assert captured.is_set() == (number > 0)
            worker.submit(completion(number, max_tokens=4))
            while not isinstance(sent.get(timeout=30)[0], RequestResult):
                pass
            assert captured.wait(timeout=30)
    finally:
        worker.stop()


class LosingCapturing(EagerCapturing):
    """Fails at the first capture, and loses its device."""

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def is_usable(self) -> bool:
        return False


def test_a_replica_ends_if_its_device_fails_in_a_capture(made: Made, tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    runner = made(capturing=LosingCapturing())
    record = FlightRecord(tmp_path / "flight")
    runner.guard(RecordingGuard(record.note_recording))
    sent = queue.SimpleQueue[Any]()
    worker = LanguageWorker(
        Scheduler(runner, ()),
        Prompts(tmp_path, max_length=64, vocabulary=VOCABULARY),
        lambda *message: sent.put(message),
        record,
    )
    worker.start()
    worker.submit(completion(1, max_tokens=4))
    while not isinstance(sent.get(timeout=30)[0], RequestResult):
        pass
    ends_at = time.monotonic() + 30
    while not worker.is_lost:
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    assert not worker.alive
    assert read_recording(tmp_path / "flight").startswith("decode steps")
    worker.stop()


def completion(number: int, max_tokens: int) -> Generate:
    return Generate(
        number,
        Generation(
            api="completions",
            prompts=[[5, 6, number + 7]],
            sampling=Sampling(max_tokens=max_tokens),
            answer={"id": "c", "model": "m", "created": 0},
        ),
    )
