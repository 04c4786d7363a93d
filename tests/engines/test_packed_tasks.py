"""Tasks, adapters and a server give the answers of packed batches that they give alone."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers

from stoker.models.adapters.applying import Adapters
from stoker.models.engines import sharing
from stoker.models.tasks.registry import TASKS
from stoker.replica.batching import BatchQueue
from stoker.runtime.interface import Call
from stoker.wire.generation_request import AdapterName
from stoker.wire.protocol import Sharing
from tests.adapters.support import made
from tests.support.deploying import deploy
from tests.support.local import Local
from tests.support.models import tiny_bert
from tests.support.server import Server

TEXTS = [
    "clara",
    "the tower in berlin is 34 metres tall",
    "who built this " + "tower where the river is " * 4,
    "my name is maria and i live in paris",
    "the tower in london is 56 metres tall and the river is near " * 2,
]
TASKS_OF_TEXTS = {
    "feature-extraction": ("Model", {"inputs": "{}"}),
    "fill-mask": ("ForMaskedLM", {"inputs": "{} [MASK]"}),
    "question-answering": ("ForQuestionAnswering", {"question": "where", "context": "{}"}),
    "text-classification": ("ForSequenceClassification", {"inputs": "{}"}),
    "token-classification": ("ForTokenClassification", {"inputs": "{}"}),
}


def near(ours: Any, theirs: Any) -> bool:
    """Returns True if two JSON values are equal up to rounding."""
    if isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-5)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(near(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(near, ours, theirs))
    return ours == theirs


@pytest.mark.parametrize("task", TASKS_OF_TEXTS)
def test_heads_read_padded_rows(tmp_path: Path, task: str) -> None:
    """Heads that read the first token, or all of them, get rows of one sample each."""
    head, body = TASKS_OF_TEXTS[task]
    bodies = [{name: part.format(text) for name, part in body.items()} for text in TEXTS]
    with closing(Local(task, tiny_bert(tmp_path, head, labels=2))) as local:
        local.stages.sharing = Sharing.ALONE
        alone = [local.ask(body) for body in bodies]
        packed = packed_sizes(local)
        local.stages.sharing = Sharing.PACKED
        assert near(local.ask_together(bodies), alone)
    assert packed == [len(TEXTS)]


def packed_sizes(local: Local) -> list[int]:
    """Returns a list that receives the size of each batch whose layers run packed."""
    layers: Any = local._engine.layers
    running, sizes = layers.running, list[int]()

    def recorded(packing: Any) -> Any:
        sizes.append(len(packing.places))
        return running(packing)

    layers.running = recorded
    return sizes


class TestAdapters:
    """Each token of a packed row gets the adapter of its sample."""

    @pytest.fixture
    def models(self, tmp_path: Path) -> dict[str, Any]:
        base = tiny_bert(tmp_path / "base")
        options: dict[str, dict[str, Any]] = {
            "all": {"target_modules": "all-linear", "r": 2},
            "head": {"target_modules": ["query"], "task_type": "TOKEN_CLS"},
            "some": {"target_modules": ["query", "value"], "layers_to_transform": [0]},
        }
        library: Any = transformers
        models = {
            name: made(tmp_path / "adapters" / name, base, **more) for name, more in options.items()
        }
        return models | {"": library.AutoModelForTokenClassification.from_pretrained(base)}

    @pytest.fixture
    def local(self, tmp_path: Path, models: dict[str, Any]) -> Iterator[Local]:
        base, folder = tmp_path / "base", tmp_path / "adapters"
        with closing(Local("token-classification", base, adapters=folder)) as local:
            local.stages.sharing = Sharing.PACKED
            yield local

    def test_rows_have_their_own(self, models: dict[str, Any], local: Local) -> None:
        adapters: Adapters = local._engine.adapters
        pairs = [(name, text) for text in TEXTS for name in models]
        samples = [local.stages.preprocess(text, {})[0] for _, text in pairs]
        for (name, _), sample in zip(pairs, samples, strict=True):
            sample.adapter = adapters.get(name) if name else None
        packed = packed_sizes(local)
        outputs = local.forward(samples)
        assert packed == [len(pairs)]
        for (name, _), sample, output in zip(pairs, samples, outputs, strict=True):
            with torch.inference_mode():
                expected = models[name](**sample.features).logits
            assert torch.allclose(output["logits"], expected, atol=2e-4)

    def test_one_for_all_rows(self, models: dict[str, Any], local: Local) -> None:
        task = "token-classification"
        calls: list[Call] = []
        for text in TEXTS:
            request = TASKS[task].request.model_validate({"inputs": text})
            items, single = request.items()
            options = {"parameters": request.parameters(), "finishing": request.finishing()}
            adapter = AdapterName(folder="all", deployment_id="", model="")
            options["finishing"] = {**options["finishing"], "model": "m"}
            calls.append(Call(task=task, items=items, single=single, adapter=adapter, **options))
        packed = packed_sizes(local)
        together = local.answers(calls)
        assert packed == [len(TEXTS)]
        for call, answer in zip(calls, together, strict=True):
            plain = msgspec.structs.replace(call, adapter=None)
            assert near(json.loads(local.answers([call])[0]), json.loads(answer))
            assert local.answers([plain]) != [answer]


def test_the_queue_counts_real_tokens(tmp_path: Path) -> None:
    """A queue of packed batches takes texts of any length."""
    with closing(Local("feature-extraction", tiny_bert(tmp_path, "Model"))) as local:
        local.stages.sharing = sharing.find(local._engine, local.stages)
        assert local.stages.sharing is Sharing.PACKED
        worker: Any = local._worker
        worker._queue.is_packed = True
        worker._queue.budget = 300
        local.batches.clear()
        local.ask_together([{"inputs": text} for text in TEXTS])
    assert local.batches == [len(TEXTS)]
    assert not BatchQueue(1).is_packed


def test_over_http(server: Server, tmp_path: Path) -> None:
    """Concurrent texts of all lengths get the answers of transformers' pipeline. The result of the
    examination is kept for later replicas.
    """
    folder = tiny_bert(tmp_path / "bert", "ForSequenceClassification")
    library: Any = transformers
    known = library.pipeline("text-classification", str(folder), top_k=3)
    texts = [f"{text} {letter}" for text in TEXTS for letter in "abcd"]
    with server.account("packed") as client:
        deploy(client, folder, "packed", engine="torch")

        def ask(text: str) -> Any:
            body = {"model": "packed", "inputs": text, "top_k": 3}
            return client.post("/v1/classifications/text", json=body).raise_for_status().json()

        ask(texts[0])
        with ThreadPoolExecutor(len(texts)) as pool:
            answers = list(pool.map(ask, texts))
    assert near(answers, [known(text)[0] for text in texts])
    paths = (server.runs_in / "cache").glob("batch-*.json")
    # A test of damaged measurements leaves a folder there.
    cached = [path.read_text() for path in paths if path.is_file()]
    assert any('"packed"' in content for content in cached)
