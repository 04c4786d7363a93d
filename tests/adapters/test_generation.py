"""Compares language models with adapters token by token with PEFT's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.base.media_limits import MediaLimits
from stoker.models.adapters import graph
from stoker.models.adapters.applying import Adapters
from stoker.models.adapters.fitting import AdapterUnfitError
from stoker.models.adapters.stored import StoredWeights
from stoker.models.llm.checkpoint import load_skeleton
from stoker.models.llm.engines.export import export
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.loading import ScheduledEngine
from stoker.models.llm.runner import Runner
from stoker.models.llm.scheduler import Scheduler
from stoker.wire.protocol import Cell, Execution, ReplicaSpec
from tests.adapters.support import made
from tests.llm.support import VOCABULARY, Answers, generated, submission, tiny_llama
from tests.support import causal

LOADER = "AutoModelForCausalLM"
KEYS: dict[str, Any] = {"target_modules": ["k_proj"], "task_type": "CAUSAL_LM"}


def prompt(number: int) -> list[int]:
    return [(7 * number + 3 * place) % VOCABULARY for place in range(5 + number)]


def on_torch(base: Path, folder: Path, _ir: Path) -> Runner:
    model = load(base, torch.float32, torch.device("cpu"))
    adapters = Adapters(model, folder, 1 << 24)
    return TorchRunner(model, threads=1, cache_bytes=1 << 20, adapters=adapters)


def on_paged(base: Path, folder: Path, _ir: Path) -> Runner:
    model = load(base, torch.float32, torch.device("cpu"))
    adapters = Adapters(model, folder, 1 << 24)
    return PagedRunner(model, threads=1, cache_bytes=1 << 20, adapters=adapters)


def on_openvino(base: Path, folder: Path, ir: Path) -> Runner:
    """Starts a runner as a replica does: from the converted model, without a torch model."""
    ir.mkdir(exist_ok=True)
    export(base, ir, threads=1)
    spec = ReplicaSpec(
        id="",
        pipeline="text-generation",
        model_dir=str(base),
        address="",
        log_path="",
        flight_path="",
        engine="openvino",
        device="cpu",
        dtype="float32",
        threads=1,
        batch_budgets={},
        limits=MediaLimits(),
        cell=Cell("", None, ""),
        secret_path="",
        execution=Execution(str(ir), "f32", ""),
        adapters=str(folder),
        adapter_bytes=1 << 24,
        cache_bytes=1 << 22,
    )
    return ScheduledEngine(spec, lambda *_: None)._runner


RUNNERS = [on_torch, on_paged, on_openvino]


def answered(runner: Runner, names: Sequence[str]) -> Answers:
    """Runs sequences together, each with the adapter of its name."""
    assert runner.adapters
    answers = Answers(Scheduler(runner, ()))
    for number, name in enumerate(names):
        adapter = runner.adapters.get(name) if name else None
        answers.scheduler.submit(submission(number, prompt(number), adapter=adapter))
    return answers.drain()


@pytest.mark.parametrize("made_on", RUNNERS)
def test_sequences_of_many_adapters_at_once(tmp_path: Path, made_on: Any) -> None:
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
    runner = made_on(base, folder, tmp_path / "ir")
    answers = answered(runner, names)
    for number, name in enumerate(names):
        assert answers.tokens[number] == generated(models[name], prompt(number), 8)
    plain = [generated(models[""], prompt(number), 8) for number in range(len(names))]
    changed = [answers.tokens[number] != plain[number] for number in range(len(names))]
    assert changed == [bool(name) for name in names]
    for name in variants:
        # Alone, and with prompts that other sequences have left in the prefix cache.
        assert answered(runner, [name]).tokens[0] == generated(models[name], prompt(0), 8)


@pytest.mark.parametrize(
    ("kind", "made_on"),
    [*((kind, on_torch) for kind in ("gpt2", "gemma3_text", "mamba")), ("gpt2", on_openvino)],
)
def test_of_other_kinds(tmp_path: Path, kind: str, made_on: Any) -> None:
    """Adapters work with transposed linear layers, sliding windows and recurrent states."""
    model = causal.model(kind)
    base, folder = tmp_path / "base", tmp_path / "adapters"
    model.save_pretrained(base)
    targets = {"gpt2": ["c_attn", "c_proj"], "mamba": ["in_proj", "x_proj"]}
    options: dict[str, Any] = {"target_modules": targets.get(kind, ["q_proj", "o_proj"])}
    adapted = made(folder / "one", base, loader=LOADER, task_type="CAUSAL_LM", **options)
    names = ["one", "", "one", ""]
    answers = answered(made_on(base, folder, tmp_path / "ir"), names)
    for number, name in enumerate(names):
        expected = generated(adapted if name else model, prompt(number), 8)
        assert answers.tokens[number] == expected


class TestOpenVino:
    def test_a_prompt_is_computed_again_with_another_adapter(self, tmp_path: Path) -> None:
        """A prompt is computed again for another adapter. Its keys and values differ, so each
        adapter has separate cache blocks.
        """
        base, folder = tiny_llama(tmp_path / "base"), tmp_path / "adapters"
        models: dict[str, Any] = {"": load(base, torch.float32, torch.device("cpu"))}
        for seed, name in enumerate("ab"):
            models[name] = made(folder / name, base, loader=LOADER, seed=seed, **KEYS)
        runner = on_openvino(base, folder, tmp_path / "ir")
        long = [(7 * place) % VOCABULARY for place in range(80)]
        answers = Answers(Scheduler(runner, ()))
        assert runner.adapters
        for number, name in enumerate(["", "a", "b", "", "a", "b"]):
            adapter = runner.adapters.get(name) if name else None
            answers.scheduler.submit(submission(number, long, adapter=adapter))
            answers.drain()
            assert answers.tokens[number] == generated(models[name], long, 8)
            assert answers.cached[number] == (64 if number > 2 else 0)

    @pytest.mark.parametrize("most_bytes", [1 << 20, 30_000])
    def test_more_than_are_laid_out_at_once(
        self, tmp_path: Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Twenty adapters take turns in pairs. The most recently used ones stay, and all answer
        correctly.
        """
        monkeypatch.setattr(graph, "KEPT_BYTES", most_bytes)
        base, folder = tiny_llama(tmp_path / "base"), tmp_path / "adapters"
        names = [f"{number}" for number in range(20)]
        models = {
            name: made(folder / name, base, loader=LOADER, seed=int(name), **KEYS) for name in names
        }
        runner = on_openvino(base, folder, tmp_path / "ir")
        for start in (*range(0, 20, 2), 3, 0):
            pair = names[start : start + 2]
            answers = answered(runner, pair)
            for number, name in enumerate(pair):
                assert answers.tokens[number] == generated(models[name], prompt(number), 8)
            inner: Any = runner
            loaded = [*inner._stack._places]
            assert {adapter.name for adapter in loaded[-2:]} == {*pair}
            assert len(loaded) <= graph.KEPT
            assert len(loaded) == 2 or sum(adapter.nbytes for adapter in loaded) <= most_bytes

    def test_a_layer_of_its_own(self, tmp_path: Path) -> None:
        """A module that replaces one of the base is applied as its difference from the base's."""
        base, folder = tiny_llama(tmp_path / "base"), tmp_path / "adapters"
        model = made(folder / "one", base, loader=LOADER, modules_to_save=["up_proj"], **KEYS)
        runner = on_openvino(base, folder, tmp_path / "ir")
        answers = answered(runner, ["one", "", "one"])
        plain = load(base, torch.float32, torch.device("cpu"))
        for number, expected_model in enumerate([model, plain, model]):
            assert answers.tokens[number] == generated(expected_model, prompt(number), 8)

    def test_what_has_no_place_there(self, tmp_path: Path) -> None:
        base, folder = tiny_llama(tmp_path / "base"), tmp_path / "adapters"
        made(folder / "one", base, loader=LOADER, **KEYS)
        model = load_skeleton(base)
        adapters = Adapters(model, folder, 1 << 24)
        of = model, StoredWeights(base), {"model.layers.0.self_attn.k_proj"}
        with pytest.raises(AdapterUnfitError, match=r"no place for model\.layers\.1\.self_attn"):
            adapters.check_all(*of)
        # The check changed nothing.
        assert adapters.get("one").modules
