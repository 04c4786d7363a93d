"""Reads adapter files and rejects unsupported ones."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stoker.inspection import Inspectors
from stoker.inspection.adapter_fit import why_unfit
from stoker.inspection.merge_plan import UnmergeableError
from stoker.models.adapters import lora
from tests.support.models import tiny_bert

MODULE = "model.layers.0.self_attn.q_proj"
SHAPES = {
    f"base_model.model.{MODULE}.lora_A.weight": (4, 16),
    f"base_model.model.{MODULE}.lora_B.weight": (32, 4),
}


def settings(**more: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **more}


def read(shapes: Any = SHAPES, **more: Any) -> lora.Lora:
    return lora.read(settings(**more), shapes)


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 4}}, 1.0),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 4}}, 1.0),
        ({"alpha_pattern": {"^q_proj": 4}}, 2.0),
        ({"alpha_pattern": {f"^{MODULE}$": 4}}, 1.0),
        ({"alpha_pattern": {"k_proj": 4}}, 2.0),
        ({"alpha_pattern": {"j_proj": 1, "q_proj": 2, "layers.0.self_attn.q_proj": 4}}, 0.5),
    ],
)
def test_scale(more: dict[str, Any], scale: float) -> None:
    assert read(**more).modules[MODULE].scale == scale


def test_what_it_tells() -> None:
    adapter = read(base_model_name_or_path="somebody/model")
    assert (adapter.rank, adapter.kinds, adapter.base) == (4, ["q_proj"], "somebody/model")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"peft_type": None}, "only LoRA"),
        ({"bias": "some"}, "unknown bias .* Use one of all"),
        ({"bias": ["all"]}, "unknown bias .* Use one of all"),
        ({"layer_replication": [[0, 1]]}, "replicated"),
        ({"trainable_token_indices": [1]}, "tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base"),
        ({"lora_alpha": "8"}, "not a number"),
        ({"lora_alpha": True}, "not a number"),
        ({"lora_alpha": float("inf")}, "the value inf for lora_alpha"),
        ({"lora_alpha": 1e9}, "the value 1000000000.0 for lora_alpha"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "only names"),
        ({"alpha_pattern": [1]}, "not an object"),
        ({"modules_to_save": "classifier"}, "list of names"),
    ],
)
def test_settings_that_are_not_served(more: dict[str, Any], words: str) -> None:
    with pytest.raises(lora.AdapterFormatError, match=words) as caught:
        read(**more)
    assert caught.value.path == lora.CONFIG


def test_no_object() -> None:
    with pytest.raises(lora.AdapterFormatError, match="no object"):
        lora.read([], SHAPES)


ONE, OTHER = SHAPES


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({}, "no LoRA matrices"),
        ({ONE: (4, 16)}, "one of the two"),
        ({ONE: (4, 16), OTHER: (32, 5)}, "do not match"),
        ({ONE: (4, 16, 1, 1), OTHER: (32, 4, 1, 1)}, "linear layers"),
        ({ONE: (0, 16), OTHER: (32, 0)}, "rank of 0"),
        ({ONE: (513, 16), OTHER: (32, 513)}, "rank of 513"),
        ({**SHAPES, "model.embed.weight": (3, 3)}, "not a LoRA tensor"),
        ({**SHAPES, "base_model.model.classifier.weight": (3, 3)}, "not supported"),
        ({**SHAPES, f"base_model.model.{MODULE}.lora_magnitude_vector": (32,)}, "not supported"),
    ],
)
def test_tensors_that_are_not_served(shapes: dict[str, Any], words: str) -> None:
    with pytest.raises(lora.AdapterFormatError, match=words) as caught:
        read(shapes)
    assert caught.value.path == lora.WEIGHTS


DORA = {f"base_model.model.{MODULE}.lora_magnitude_vector": (32,)}
ADDED = {f"base_model.model.{MODULE}.lora_B.bias": (32,)}
BIAS = {f"base_model.model.{MODULE}.base_layer.bias": (32,)}


class TestAlone:
    """Adapter features that cannot be applied per row of a batch."""

    @pytest.mark.parametrize(
        ("tensors", "more", "words"),
        [
            (DORA, {"use_dora": True}, "DoRA"),
            (BIAS, {"bias": "all"}, "trained biases"),
            (ADDED, {"lora_bias": True}, "biases of its matrices"),
            (DORA | BIAS, {"use_dora": True, "bias": "lora_only"}, "DoRA and trained biases"),
        ],
    )
    def test_says_why(self, tensors: Any, more: dict[str, Any], words: str) -> None:
        assert words in read(SHAPES | tensors, **more).alone
        assert read().alone == ""

    @pytest.mark.parametrize(
        ("tensors", "more", "words"),
        [
            ({}, {"use_dora": True}, "use_dora"),
            ({}, {"lora_bias": True}, "lora_bias"),
            (dict.fromkeys(DORA, (16,)), {"use_dora": True}, "32 outputs"),
            (dict.fromkeys(ADDED, (32, 1)), {"lora_bias": True}, "32 outputs"),
            (
                DORA | {"base_model.model.other.lora_magnitude_vector": (32,)},
                {"use_dora": True},
                "exactly the LoRA modules",
            ),
            (BIAS, {}, "not supported"),
        ],
    )
    def test_that_does_not_add_up(self, tensors: Any, more: dict[str, Any], words: str) -> None:
        with pytest.raises(lora.AdapterFormatError, match=words) as caught:
            read(SHAPES | tensors, **more)
        assert caught.value.path == lora.WEIGHTS


class TestFits:
    HEAD = {"base_model.model.classifier.weight": (3, 16)}

    @pytest.mark.parametrize(
        "weights",
        [
            {f"{MODULE}.weight": (32, 16)},
            {"layers.0.self_attn.q_proj.weight": (32, 16)},
            {f"text.{MODULE}.weight": (32, 16)},
            # Transposed, as in GPT-2.
            {f"{MODULE}.weight": (16, 32)},
        ],
    )
    def test_names_from_their_ends(self, weights: Any) -> None:
        assert why_unfit(read(), weights) is None

    @pytest.mark.parametrize(
        ("weights", "words"),
        [
            ({"layers.0.attention.query.weight": (32, 16)}, "q_proj"),
            ({f"{MODULE}.weight": (32, 24)}, "16 inputs"),
            ({f"{MODULE}.weight": (64, 16)}, "32 outputs"),
        ],
    )
    def test_of_another_base(self, weights: Any, words: str) -> None:
        assert words in (why_unfit(read(), weights) or "")

    def test_a_head(self) -> None:
        adapter = read({**SHAPES, **self.HEAD}, modules_to_save=["classifier"])
        weights = {f"{MODULE}.weight": (32, 16), "classifier.weight": (3, 16)}
        assert why_unfit(adapter, weights) is None
        weights["classifier.weight"] = (5, 16)
        assert "[5, 16]" in (why_unfit(adapter, weights) or "")


@pytest.mark.case(32)
def test_many_modules_and_patterns_take_no_time_of_the_square() -> None:
    """Many modules and patterns do not take quadratic time. A config of 16 MiB has hundreds of
    thousands of patterns.
    """
    names = [f"model.layers.{at}.q_proj" for at in range(20_000)]
    patterns = {f"layers.{at}.q_proj": at % 7 for at in range(40_000, 20_000, -1)}
    patterns |= {"^model.layers.7.q_proj": 5, "layers.9.q_proj": 3, "9.q_proj": 4}
    began = time.process_time()
    alphas = lora._Alphas.of(patterns, 8.0)
    values = {name: alphas.alpha(name) for name in names}
    assert time.process_time() - began < 5
    # The first matching pattern applies, as before.
    assert (values[names[7]], values[names[9]], values[names[8]]) == (5, 3, 8)


@pytest.mark.case(32)
async def test_large_headers_are_read_elsewhere(tmp_path: Path) -> None:
    """Deploying an adapter compares it with its base outside the gateway's process."""
    count, base = 15_000, tiny_bert(tmp_path / "base")
    tensors = {
        f"base_model.model.m.{at}.lora_{which}.weight": torch.zeros(1, 1, dtype=torch.float16)
        for at in range(count)
        for which in "AB"
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "alpha_pattern": {f"m.{at}": 1 for at in range(count)}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    paths = {name: tmp_path / name for name in (lora.CONFIG, lora.WEIGHTS)}
    inspectors = Inspectors()
    began = time.process_time()
    try:
        fit = await inspectors.fit("A", paths, base, "")
        assert fit.why_unfit.startswith("the adapter changes 'm.0.weight'")
        with pytest.raises(UnmergeableError):
            await inspectors.plan_merge("A", paths, base, tmp_path / "to", is_single=False)
    finally:
        await inspectors.close()
    assert time.process_time() - began < 0.5
