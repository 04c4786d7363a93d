"""Merges an adapter into the weights of its base, as PEFT's `merge_and_unload` does."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stoker.base.config import Settings
from stoker.base.errors import CapacityError, PayloadTooLargeError
from stoker.inspection import Inspectors
from stoker.inspection.merge_plan import why_unmergeable
from stoker.models.adapters.merge_job import MergeJob, MergeTask
from stoker.registry.deployments import merging
from stoker.registry.deployments.merging import Merges
from stoker.sandbox import landlock
from tests.adapters.support import made
from tests.llm.support import tiny_llama
from tests.support.models import tiny_bert

library: Any = transformers

BERT: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["query", "dense"]},
    "stabilised": {"target_modules": ["query"], "use_rslora": True},
    "dora": {"target_modules": ["query", "dense"], "use_dora": True, "task_type": "TOKEN_CLS"},
    "all_biases": {"target_modules": ["query"], "bias": "all", "task_type": "TOKEN_CLS"},
    "its_biases": {"target_modules": ["query", "dense"], "bias": "lora_only"},
    "added_biases": {"target_modules": ["query", "dense"], "lora_bias": True},
    "dora_and_biases": {"target_modules": ["value"], "use_dora": True, "bias": "all"},
}


def tiny_gpt2(folder: Path) -> Path:
    transformers.set_seed(2)
    config = library.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, n_positions=32)
    library.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def merged(adapter: Path, base: Path, target: Path, *, is_single: bool = False) -> Path:
    paths = {path.name: path for path in adapter.iterdir()}
    asyncio.run(merge(paths, base, target, is_single=is_single))
    return target


async def merge(
    paths: Mapping[str, Path], base: Path, target: Path, *, is_single: bool = False, **options: Any
) -> None:
    inspectors = Inspectors()
    settings = Settings(data_dir=target.parent)
    try:
        await Merges(settings, inspectors, options.pop("check_disk", lambda _: None)).merge(
            "A", paths, base, target, is_single=is_single, is_linked=False, **options
        )
    finally:
        await inspectors.close()


def compare(expected: Any, folder: Path, loader: str) -> None:
    """Compares each weight of PEFT's merged model with the weights that transformers loads from a
    folder.
    """
    weights = getattr(library, loader).from_pretrained(folder).state_dict()
    expected_weights = expected.merge_and_unload().state_dict()
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", BERT)
def test_of_an_encoder(kind: str, tmp_path: Path) -> None:
    base = tiny_bert(tmp_path / "base")
    expected = made(tmp_path / "adapter", base, **BERT[kind])
    folder = merged(tmp_path / "adapter", base, tmp_path / "merged")
    compare(expected, folder, "AutoModelForTokenClassification")


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("shard", ["5GB", "40KB"])
def test_of_a_language_model(use_dora: bool, shard: str, tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    loader = "AutoModelForCausalLM"
    # Save the weights in several files or in one.
    whole = library.AutoModelForCausalLM.from_pretrained(base)
    (base / "model.safetensors").unlink()
    whole.save_pretrained(base, max_shard_size=shard)
    modules = ["q_proj", "down_proj", "lm_head"]
    expected = made(
        tmp_path / "adapter", base, loader=loader, target_modules=modules, use_dora=use_dora
    )
    compare(expected, merged(tmp_path / "adapter", base, tmp_path / "merged"), loader)


@pytest.mark.parametrize("use_dora", [False, True])
def test_of_weights_that_lie_the_other_way(use_dora: bool, tmp_path: Path) -> None:
    """Transposed weights are merged correctly, including a square one with a shape that does not
    show its orientation.
    """
    base = tiny_gpt2(tmp_path / "base")
    expected = made(
        tmp_path / "adapter",
        base,
        loader="AutoModelForCausalLM",
        target_modules=["c_attn", "c_proj"],
        use_dora=use_dora,
        fan_in_fan_out=True,
    )
    folder = merged(tmp_path / "adapter", base, tmp_path / "merged")
    compare(expected, folder, "AutoModelForCausalLM")


def test_in_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from stoker.models.adapters import merging as process

    monkeypatch.setattr(process, "_BLOCK_BYTES", 1000)

    async def run(task: MergeTask, _: float) -> None:
        process.merge(task.job)

    monkeypatch.setattr(merging, "_run", run)
    base = tiny_gpt2(tmp_path / "base")
    options = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}
    expected = made(tmp_path / "adapter", base, loader="AutoModelForCausalLM", **options)
    folder = merged(tmp_path / "adapter", base, tmp_path / "merged")
    compare(expected, folder, "AutoModelForCausalLM")


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_half_precision(dtype: torch.dtype, is_single: bool, tmp_path: Path) -> None:
    """Half-precision weights are computed in float32 and rounded once, or not rounded."""
    base = tiny_llama(tmp_path / "base")
    library.AutoModelForCausalLM.from_pretrained(base, dtype=dtype).save_pretrained(base)
    made(
        tmp_path / "adapter",
        base,
        loader="AutoModelForCausalLM",
        target_modules=["q_proj"],
        use_dora=True,
    )
    peft: Any = pytest.importorskip("peft")
    model = library.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").merge_and_unload()
    target = merged(tmp_path / "adapter", base, tmp_path / "merged", is_single=is_single)
    weights = load_file(target / "model.safetensors")
    before = load_file(base / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = expected.state_dict()[name]
    if is_single:
        torch.testing.assert_close(weights[name], weight, rtol=1e-5, atol=1e-6)
    else:
        assert weights[name].dtype is dtype
        # A value near the midpoint of two neighbours may be rounded either way.
        differs = weights[name] != weight.to(dtype)
        assert differs.float().mean() < 0.01
        torch.testing.assert_close(weights[name].float(), weight, rtol=2**-8, atol=1e-6)
    other = "model.layers.0.self_attn.k_proj.weight"
    assert torch.equal(weights[other], before[other])


class TestCannotBe:
    def why(self, adapter: Path, base: Path) -> str:
        reason = why_unmergeable({path.name: path for path in adapter.iterdir()}, base)
        assert reason
        return reason

    def test_of_another_size(self, tmp_path: Path) -> None:
        base, wide = tiny_llama(tmp_path / "base"), tiny_llama(tmp_path / "wide", head_size=8)
        options = {"target_modules": ["q_proj"], "use_dora": True}
        made(tmp_path / "adapter", wide, loader="AutoModelForCausalLM", **options)
        assert "32 inputs" in self.why(tmp_path / "adapter", base)

    def test_of_other_modules(self, tmp_path: Path) -> None:
        base, bert = tiny_llama(tmp_path / "base"), tiny_bert(tmp_path / "bert")
        made(tmp_path / "adapter", bert, target_modules=["query"], use_dora=True)
        assert "query" in self.why(tmp_path / "adapter", base)

    def test_a_bias_that_is_none(self, tmp_path: Path) -> None:
        base = tiny_llama(tmp_path / "base")
        options = {"target_modules": ["q_proj"], "loader": "AutoModelForCausalLM"}
        made(tmp_path / "adapter", base, **options)
        path = tmp_path / "adapter" / "adapter_model.safetensors"
        tensors = load_file(path)
        name = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias"
        save_file(tensors | {name: torch.ones(64)}, path)
        config = tmp_path / "adapter" / "adapter_config.json"
        config.write_text(config.read_text().replace('"bias": "none"', '"bias": "all"'))
        assert "q_proj.bias" in self.why(tmp_path / "adapter", base)

    def test_without_safetensors(self, tmp_path: Path) -> None:
        base = tiny_bert(tmp_path / "base")
        made(tmp_path / "adapter", base, target_modules=["query"], use_dora=True)
        (base / "model.safetensors").unlink()
        assert "no safetensors" in self.why(tmp_path / "adapter", base)

    def test_a_last_layer_that_is_the_embeddings(self, tmp_path: Path) -> None:
        base = tiny_gpt2(tmp_path / "base")
        options = {"target_modules": ["lm_head"], "use_dora": True}
        made(tmp_path / "adapter", base, loader="AutoModelForCausalLM", **options)
        assert "lm_head" in self.why(tmp_path / "adapter", base)


def test_what_lies_beside(tmp_path: Path) -> None:
    """Other formats of the weights are not copied, because they do not contain the adapter."""
    base = tiny_bert(tmp_path / "base")
    (base / "model.gguf").write_bytes(b"GGUF")
    made(tmp_path / "adapter", base, target_modules=["query"], use_dora=True)
    folder = merged(tmp_path / "adapter", base, tmp_path / "merged")
    names = {path.name for path in base.iterdir()} - {"model.gguf"}
    assert {path.name for path in folder.iterdir()} == names
    shutil.rmtree(base)
    library.AutoTokenizer.from_pretrained(folder)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


class TestBounds:
    """A merge uses disk, memory and time of its account and reads no other files."""

    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[dict[str, Path], Path]:
        base = tiny_bert(tmp_path / "base")
        made(tmp_path / "adapter", base, target_modules=["query"], use_dora=True)
        return {path.name: path for path in (tmp_path / "adapter").iterdir()}, base

    @pytest.mark.case(33)
    async def test_disk_and_quota_come_first(
        self, pair: tuple[dict[str, Path], Path], tmp_path: Path
    ) -> None:
        target, reserved = tmp_path / "models" / "merged", list[int]()

        def full(size: int) -> None:
            reserved.append(size)
            raise CapacityError("full", code="insufficient_storage")

        async def exhausted(size: int) -> None:
            reserved.append(size)
            raise PayloadTooLargeError("no more", code="quota_exceeded")

        with pytest.raises(CapacityError):
            await merge(*pair, target, check_disk=full)
        with pytest.raises(PayloadTooLargeError):
            await merge(*pair, target, reserve=exhausted)
        assert not [*target.parent.iterdir()]
        await merge(*pair, target)
        written = (target / "model.safetensors").stat().st_size
        assert reserved[0] == reserved[1]
        assert written <= reserved[0] < written * 1.2 + 100_000

    @pytest.mark.case(33)
    async def test_time_is_bounded(
        self, pair: tuple[dict[str, Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(merging, "LEAST_S", 0.0)
        monkeypatch.setattr(merging, "BYTES_PER_S", 1e12)
        with pytest.raises(merging.UnmergeableError, match="longer than"):
            await merge(*pair, tmp_path / "models" / "merged")
        assert not [*(tmp_path / "models").iterdir()]

    @pytest.mark.case(33)
    async def test_the_process_reads_and_writes_what_it_was_given(
        self, pair: tuple[dict[str, Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Code that runs in the merging process through a flaw in the weights reader reaches no
        other file.
        """
        if not landlock.version():
            pytest.skip("this kernel has no Landlock")
        secret = tmp_path / "secret"
        secret.write_bytes(b"x" * 4096)
        ran = merging._run

        async def other_file(task: MergeTask, limit_s: float) -> None:
            files = [
                msgspec.structs.replace(
                    file,
                    tensors=[
                        msgspec.structs.replace(
                            tensor, value=msgspec.structs.replace(tensor.value, path=str(secret))
                        )
                        for tensor in file.tensors
                    ],
                )
                for file in task.job.files
            ]
            await ran(msgspec.structs.replace(task, job=MergeJob(files)), limit_s)

        async def other_target(task: MergeTask, limit_s: float) -> None:
            files = [
                msgspec.structs.replace(job_file, path=str(tmp_path / "taken"))
                for job_file in task.job.files
            ]
            await ran(msgspec.structs.replace(task, job=MergeJob(files)), limit_s)

        for wrong in (other_file, other_target):
            monkeypatch.setattr(merging, "_run", wrong)
            with pytest.raises(merging.UnmergeableError, match="Permission denied"):
                await merge(*pair, tmp_path / "models" / "merged")
        assert not (tmp_path / "taken").exists()
