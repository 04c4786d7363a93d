"""Compares the results of replicas with adapters with PEFT's own."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from stoker.models.adapters.applying import Adapters, LoadedAdapter
from stoker.models.adapters.stored import StoredWeights
from stoker.models.tasks.registry import TASKS
from stoker.runtime.interface import Call
from stoker.wire.generation_request import AdapterName
from tests.adapters.support import library, made
from tests.support.conversion import conversion_of
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert

TEXTS = ["clara lives in berlin", "the tower is in paris, and it was built there", "a"]
ATTENTION = ["query", "value"]


def call(pipeline: str, text: str, adapter: str | None = None) -> Call:
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


def served(pipeline: str, base: Path, adapters: Path, runs_on: str) -> Local:
    local = Local(pipeline, base, adapters=adapters, in_openvino=runs_on != "torch")
    if runs_on == "openvino":
        local.adopt(conversion_of(base, pipeline))
    return local


RUNS_ON = pytest.mark.parametrize("runs_on", ["torch", "openvino"])


class TestEncoders:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return tiny_bert(tmp_path / "base", "Model")

    @RUNS_ON
    def test_rows_of_one_batch_have_their_own(
        self, tmp_path: Path, base: Path, runs_on: str
    ) -> None:
        """Each row of a batch gets its own adapter. The batch mixes the base with four adapters of
        different ranks, scales and modules.
        """
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
        local = served("feature-extraction", base, folder, runs_on)
        pairs = [(name, text) for text in TEXTS for name in models]
        calls = [call("feature-extraction", text, name or None) for name, text in pairs]
        embeddings = [np.array(parsed(embedding)) for embedding in local.answers(calls)]
        assert max(local.batches) >= len(models)
        assert local.engine == runs_on
        for (name, text), ours in zip(pairs, embeddings, strict=True):
            with torch.inference_mode():
                hidden = models[name](**tokenizer(text, return_tensors="pt")).last_hidden_state
            expected = hidden.mean(1)[0] if ours.ndim == 1 else hidden[0]
            np.testing.assert_allclose(ours, expected.numpy(), atol=2e-5)
        distinct = {tuple(np.round(embedding.ravel()[:8], 4)) for embedding in embeddings}
        assert len(distinct) == len(pairs)
        local.close()

    @RUNS_ON
    @pytest.mark.parametrize("kind", ["Albert", "DistilBert", "ModernBert"])
    def test_of_other_kinds(self, tmp_path: Path, kind: str, runs_on: str) -> None:
        """Adapters work with other architectures: one calls its layers more than once, one has
        other module names, one uses windowed attention.
        """
        base = tiny_bert(tmp_path / "base", "ForTokenClassification")
        tokenizer: Any = AutoTokenizer.from_pretrained(base)
        sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3}
        if kind == "DistilBert":
            sizes = {"dim": 32, "n_heads": 2, "n_layers": 3, "hidden_dim": 64}
        config = getattr(library, f"{kind}Config")(
            vocab_size=len(tokenizer), num_labels=3, max_position_embeddings=128, **sizes
        )
        config.intermediate_size = 64
        config.pad_token_id = tokenizer.pad_token_id
        torch.manual_seed(0)
        getattr(library, f"{kind}ForTokenClassification")(config).save_pretrained(base)
        folder = tmp_path / "adapters"
        targets = {
            "Albert": ["query", "value", "ffn"],
            "DistilBert": ["q_lin", "v_lin", "lin1"],
            "ModernBert": ["Wqkv", "Wo"],
        }
        options: dict[str, Any] = {"target_modules": targets[kind], "task_type": "TOKEN_CLS"}
        names = ["one", "two"]
        models = {
            name: made(folder / name, base, seed=seed, **options) for seed, name in enumerate(names)
        }
        models[""] = library.AutoModelForTokenClassification.from_pretrained(base)
        local = served("token-classification", base, folder, runs_on)
        pairs = [(text, name) for text in TEXTS[:2] for name in models]
        answers = local.answers([call("token-classification", *item) for item in pairs])
        for (text, name), answer in zip(pairs, answers, strict=True):
            with torch.inference_mode():
                logits = models[name](**tokenizer(text, return_tensors="pt")).logits[0, 1:-1]
            scores = [item["score"] for item in parsed(answer)]
            expected = logits.softmax(-1).max(-1).values.tolist()
            assert scores == pytest.approx(expected, abs=2e-5)
        assert local.engine == runs_on
        local.close()

    @RUNS_ON
    def test_a_head_of_its_own(self, tmp_path: Path, runs_on: str) -> None:
        base = tiny_bert(tmp_path / "base", "ForSequenceClassification")
        folder = tmp_path / "adapters"
        loader = "AutoModelForSequenceClassification"
        model = made(folder / "one", base, loader=loader, task_type="SEQ_CLS")
        plain = getattr(library, loader).from_pretrained(base)
        tokenizer: Any = AutoTokenizer.from_pretrained(base)
        local = served("text-classification", base, folder, runs_on)
        pairs = [(text, adapter) for text in TEXTS for adapter in (None, "one")]
        answers = local.answers([call("text-classification", *pair) for pair in pairs])
        for (text, adapter), answer in zip(pairs, answers, strict=True):
            expected_model = model if adapter else plain
            with torch.inference_mode():
                logits = expected_model(**tokenizer(text, return_tensors="pt")).logits[0]
            scores = logits.softmax(-1)
            best = parsed(answer)
            best = best[0] if isinstance(best, list) else best
            assert best["label"] == plain.config.id2label[int(scores.argmax())]
            assert best["score"] == pytest.approx(float(scores.max()), abs=1e-5)
        assert local.engine == runs_on
        local.close()

    def test_one_that_is_loaded_while_the_base_becomes_a_graph(self, tmp_path: Path) -> None:
        base = tiny_bert(tmp_path / "base", "ForSequenceClassification")
        loader = "AutoModelForSequenceClassification"
        made(tmp_path / "adapters" / "one", base, loader=loader, task_type="SEQ_CLS")
        model = getattr(library, loader).from_pretrained(base)
        adapters = Adapters(model, tmp_path / "adapters", 1 << 24)
        places = {name for name, _ in model.named_modules()}
        drop = model.to
        with ThreadPoolExecutor(1) as threads:
            loading: list[Future[LoadedAdapter]] = []

            def dropped(device: str) -> Any:
                drop(device)
                loading.append(threads.submit(adapters.get, "one"))
                # The load must wait. Otherwise it finds neither the model's weights nor the stored
                # ones.
                wait(loading, 0.5)
                return model

            model.to = dropped
            adapters.rebase(model, StoredWeights(base), places)
            adapter = loading[0].result()
        assert "classifier" in adapter.modules
        assert not adapter.saved
        assert all(
            matrix.device.type == "cpu" for pair in adapter.modules.values() for matrix in pair
        )

    def test_the_least_used_go(self, tmp_path: Path, base: Path) -> None:
        folder = tmp_path / "adapters"
        names = ["a", "b", "c"]
        for seed, name in enumerate(names):
            made(folder / name, base, loader="AutoModel", seed=seed, target_modules=ATTENTION)
        runner = Local("feature-extraction", base, adapters=folder)
        adapters: Any = runner._engine.adapters
        size = adapters.get("a").nbytes
        runner.close()
        local = Local("feature-extraction", base, adapters=folder, adapter_bytes=2 * size)
        answers: dict[str, Any] = {}
        for name in ["a", "b", "a", "c", "b", "a"]:
            (answer,) = local.answers([call("feature-extraction", TEXTS[0], name)])
            assert answers.setdefault(name, answer) == answer
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
        with pytest.raises(RefusedError, match="its engine does not support adapters"):
            local.answers([call("feature-extraction", TEXTS[0], "any")])
        local.close()


def parsed(answer: bytes) -> Any:
    import json

    return json.loads(answer)
