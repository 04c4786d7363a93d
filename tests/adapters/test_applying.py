"""What replicas compute with adapters, against PEFT's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from stoker.runtime.interface import Call
from stoker.tasks.registry import TASKS
from stoker.wire.generation_request import AdapterName
from tests.adapters.support import library, made
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert

TEXTS = ["clara lives in berlin", "the tower is in paris, and it was built there", "a"]
ATTENTION = ["query", "value"]


def call(pipeline: str, text: str, adapter: str | None) -> Call:
    request = TASKS[pipeline].request.model_validate({"inputs": text})
    items, single = request.items()
    return Call(
        task=pipeline,
        items=items,
        single=single,
        parameters=request.parameters(),
        finishing=request.finishing() | {"model": "m"},
        adapter=AdapterName(folder=adapter, deployment_id="", model="") if adapter else None,
    )


class TestEncoders:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return tiny_bert(tmp_path / "base", "Model")

    def test_rows_of_one_batch_have_their_own(self, tmp_path: Path, base: Path) -> None:
        """Of the base and of four adapters, of other ranks, scales and modules."""
        folder = tmp_path / "adapters"
        variants: dict[str, dict[str, Any]] = {
            "attention": {"target_modules": ATTENTION},
            "all": {"target_modules": "all-linear", "r": 2},
            "scaled": {"target_modules": ["dense"], "r": 8, "use_rslora": True},
            "some": {
                "target_modules": ATTENTION,
                "rank_pattern": {"layer.0.attention.self.query": 3},
                "alpha_pattern": {"layer.0.attention.self.query": 2},
                "layers_to_transform": [0],
            },
        }
        models = {
            name: made(folder / name, base, loader="AutoModel", seed=seed, **options)
            for seed, (name, options) in enumerate(variants.items())
        }
        models |= {"": library.AutoModel.from_pretrained(base)}
        tokenizer: Any = AutoTokenizer.from_pretrained(base)
        local = Local("feature-extraction", base, adapters=folder)
        asked = [(name, text) for text in TEXTS for name in models]
        calls = [call("feature-extraction", text, name or None) for name, text in asked]
        found = [np.array(parsed(one)) for one in local.answers(calls)]
        assert max(local.batches) >= len(models)
        for (name, text), ours in zip(asked, found, strict=True):
            with torch.inference_mode():
                hidden = models[name](**tokenizer(text, return_tensors="pt")).last_hidden_state
            expected = hidden.mean(1)[0] if ours.ndim == 1 else hidden[0]
            np.testing.assert_allclose(ours, expected.numpy(), atol=2e-5)
        distinct = {tuple(np.round(one.ravel()[:8], 4)) for one in found}
        assert len(distinct) == len(asked)
        local.close()

    def test_a_head_of_its_own(self, tmp_path: Path) -> None:
        base = tiny_bert(tmp_path / "base", "ForSequenceClassification")
        folder = tmp_path / "adapters"
        loader = "AutoModelForSequenceClassification"
        model = made(folder / "one", base, loader=loader, task_type="SEQ_CLS")
        plain = getattr(library, loader).from_pretrained(base)
        tokenizer: Any = AutoTokenizer.from_pretrained(base)
        local = Local("text-classification", base, adapters=folder)
        asked = [(text, adapter) for text in TEXTS for adapter in (None, "one")]
        answers = local.answers([call("text-classification", *one) for one in asked])
        for (text, adapter), answer in zip(asked, answers, strict=True):
            own = model if adapter else plain
            with torch.inference_mode():
                logits = own(**tokenizer(text, return_tensors="pt")).logits[0]
            scores = logits.softmax(-1)
            best = parsed(answer)
            best = best[0] if isinstance(best, list) else best
            assert best["label"] == plain.config.id2label[int(scores.argmax())]
            assert best["score"] == pytest.approx(float(scores.max()), abs=1e-5)
        local.close()

    def test_the_least_used_go(self, tmp_path: Path, base: Path) -> None:
        folder = tmp_path / "adapters"
        names = ["a", "b", "c"]
        for seed, name in enumerate(names):
            made(folder / name, base, loader="AutoModel", seed=seed, target_modules=ATTENTION)
        one = Local("feature-extraction", base, adapters=folder)
        adapters: Any = one._engine.adapters
        size = adapters.get("a").nbytes
        one.close()
        local = Local("feature-extraction", base, adapters=folder, adapter_bytes=2 * size)
        answers: dict[str, Any] = {}
        for name in ["a", "b", "a", "c", "b", "a"]:
            (found,) = local.answers([call("feature-extraction", TEXTS[0], name)])
            assert answers.setdefault(name, found) == found
            adapters = local._engine.adapters
            assert name in adapters._kept
            assert len(adapters._kept) <= 2
        assert [*adapters._kept] == ["b", "a"]
        local.close()

    def test_what_does_not_fit(self, tmp_path: Path, base: Path) -> None:
        other = tiny_bert(tmp_path / "other", "Model", positions=64)
        config = library.AutoConfig.from_pretrained(other, hidden_size=48, num_attention_heads=4)
        library.AutoModel.from_config(config).save_pretrained(other)
        folder = tmp_path / "adapters"
        made(folder / "wide", other, loader="AutoModel", target_modules=ATTENTION)
        local = Local("feature-extraction", base, adapters=folder)
        with pytest.raises(RefusedError, match="48 inputs") as caught:
            local.answers([call("feature-extraction", TEXTS[0], "wide")])
        assert caught.value.failure.param == "model"
        local.close()

    def test_where_nothing_takes_them(self, base: Path) -> None:
        local = Local("feature-extraction", base)
        with pytest.raises(RefusedError, match="takes none"):
            local.answers([call("feature-extraction", TEXTS[0], "any")])
        local.close()


def parsed(answer: bytes) -> Any:
    import json

    return json.loads(answer)
