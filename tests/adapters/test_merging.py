"""An adapter in the weights of its base, as PEFT's `merge_and_unload` computes them."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stoker.deployments import merging
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
    assert merging.why_unmergeable(paths, base) is None
    done = merging.merge(paths, base, target, is_single=is_single, is_linked=False)
    asyncio.run(done)
    return target


def compare(expected: Any, folder: Path, loader: str) -> None:
    """Each weight, of PEFT's model and of what transformers loads of a folder."""
    found = getattr(library, loader).from_pretrained(folder).state_dict()
    wanted = expected.merge_and_unload().state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


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
    # Its weights in several files, or one.
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
    """A square one, too, of which the shape says nothing."""
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
    from stoker.adapters import merging as process

    monkeypatch.setattr(process, "_BLOCK_BYTES", 1000)

    async def run(job: Any) -> None:
        process.merge(job)

    monkeypatch.setattr(merging, "_run", run)
    base = tiny_gpt2(tmp_path / "base")
    options = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}
    expected = made(tmp_path / "adapter", base, loader="AutoModelForCausalLM", **options)
    folder = merged(tmp_path / "adapter", base, tmp_path / "merged")
    compare(expected, folder, "AutoModelForCausalLM")


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_half_precision(dtype: torch.dtype, is_single: bool, tmp_path: Path) -> None:
    """Computed in float32 and rounded once, or not at all."""
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
    found = load_file(target / "model.safetensors")
    before = load_file(base / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = expected.state_dict()[name]
    if is_single:
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6)
    else:
        assert found[name].dtype is dtype
        # What is next to the middle of two may be rounded either way.
        differs = found[name] != weight.to(dtype)
        assert differs.float().mean() < 0.01
        torch.testing.assert_close(found[name].float(), weight, rtol=2**-8, atol=1e-6)
    other = "model.layers.0.self_attn.k_proj.weight"
    assert torch.equal(found[other], before[other])


class TestCannotBe:
    def why(self, adapter: Path, base: Path) -> str:
        found = merging.why_unmergeable({path.name: path for path in adapter.iterdir()}, base)
        assert found
        return found

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
    """Other forms of the weights stay behind: they have no adapter in them."""
    base = tiny_bert(tmp_path / "base")
    (base / "model.gguf").write_bytes(b"GGUF")
    made(tmp_path / "adapter", base, target_modules=["query"], use_dora=True)
    folder = merged(tmp_path / "adapter", base, tmp_path / "merged")
    names = {path.name for path in base.iterdir()} - {"model.gguf"}
    assert {path.name for path in folder.iterdir()} == names
    shutil.rmtree(base)
    library.AutoTokenizer.from_pretrained(folder)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
