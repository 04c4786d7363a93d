"""Sparse vectors and vectors a token, against sentence-transformers."""

import base64
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from stoker.inspection import InspectionError, inspect
from stoker.models.tasks.base import TaskRequest
from stoker.models.tasks.embeddings import EmbeddingsRequest
from stoker.models.tasks.feature_extraction import FeatureExtractionRequest
from stoker.models.tasks.registry import PIPELINES
from stoker.models.tasks.rerank import RerankRequest
from stoker.models.tasks.similarity import SimilarityRequest
from stoker.runtime.interface import Call
from tests.inspection.builders import FolderFiles
from tests.support.conversion import conversion_of
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert

TEXTS = [
    "clara lives in berlin.",
    "the tower is 324 metres tall, and it was built in paris",
    "a",
]
QUERY = "who lives in berlin?"
WIDTH, OUT = 32, 12


class Asked:
    """A model folder, as the endpoints ask it."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def embedded(self, *texts: Any, **options: Any) -> list[Any]:
        """By one call, and the same one by one."""
        data = self.whole("embeddings", EmbeddingsRequest, input=list(texts), **options)["data"]
        return [one["embedding"] for one in data]

    def whole(self, task: str, kind: type[TaskRequest], **body: Any) -> Any:
        request = kind.model_validate(body)
        items, single = request.items()
        call = Call(
            task=task,
            items=items,
            single=single,
            parameters=request.parameters(),
            finishing={**request.finishing(), "model": "m"},
        )
        (answer,) = self._local.answers([call])
        return json.loads(answer)


@contextmanager
def at_work(
    folder: Path, pipeline: str = "feature-extraction", *, converted: bool = False
) -> Iterator[Asked]:
    local = Local(pipeline, folder, in_openvino=converted)
    try:
        if converted:
            local.adopt(conversion_of(folder, pipeline))
            while local.engine != "openvino":
                # It is taken between two batches.
                Asked(local).embedded("a")
        yield Asked(local)
    finally:
        local.close()


def pushed(folder: Path) -> str:
    return inspect(FolderFiles(folder), None, PIPELINES).pipeline


def full(sparse: Mapping[str, list[Any]], width: int) -> Any:
    assert sparse["indices"] == sorted(sparse["indices"])
    assert min(sparse["values"]) > 0
    vector = np.zeros(width)
    vector[sparse["indices"]] = sparse["values"]
    return vector


def rerank(asked: Asked) -> list[float]:
    given = asked.whole("rerank", RerankRequest, query=QUERY, documents=TEXTS)
    found = {one["index"]: one["relevance_score"] for one in given["results"]}
    scores = [one["relevance_score"] for one in given["results"]]
    assert scores == sorted(scores, reverse=True)
    return [found[index] for index in range(len(TEXTS))]


class TestSparse:
    @pytest.fixture(params=[("max", "relu"), ("sum", "relu"), ("max", "log1p_relu")])
    def encoder(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

        pooling, activation = request.param
        bert = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        parts = [MLMTransformer(str(bert)), SpladePooling(pooling, activation)]
        encoder = SparseEncoder(modules=parts, device="cpu")
        encoder.save_pretrained(str(tmp_path / "model"))
        return encoder

    def test_as_sentence_transformers(self, encoder: Any, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        pushed(folder)
        theirs = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        query = encoder.encode([QUERY], convert_to_sparse_tensor=False).numpy()[0]
        for pipeline in ("feature-extraction", "fill-mask"):
            with at_work(folder, pipeline) as asked:
                found = [full(one, theirs.shape[1]) for one in asked.embedded(*TEXTS)]
                np.testing.assert_allclose(found, theirs, atol=1e-5)
                alone = full(asked.embedded(TEXTS[1])[0], theirs.shape[1])
                np.testing.assert_allclose(alone, theirs[1], atol=1e-5)
                np.testing.assert_allclose(rerank(asked), theirs @ query, rtol=1e-5)

    @pytest.mark.parametrize("encoder", [("max", "relu")], indirect=True)
    @pytest.mark.parametrize("pipeline", ["feature-extraction", "fill-mask"])
    def test_converted(self, encoder: Any, tmp_path: Path, pipeline: str) -> None:
        theirs = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        with at_work(tmp_path / "model", pipeline, converted=True) as asked:
            found = [full(one, theirs.shape[1]) for one in asked.embedded(*TEXTS)]
        np.testing.assert_allclose(found, theirs, atol=1e-4)

    def test_of_a_model_without_modules(self, tmp_path: Path) -> None:
        """Many SPLADE models are published as what they were made of."""
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        folder = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        assert pushed(folder) == "fill-mask"
        model: Any = AutoModelForMaskedLM.from_pretrained(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        with torch.inference_mode():
            logits = model(**tokenizer(QUERY, return_tensors="pt")).logits[0]
        expected = torch.log1p(torch.relu(logits)).amax(0).numpy()
        with at_work(folder, "fill-mask") as asked:
            (found,) = asked.embedded(QUERY, embedding_type="sparse")
            (coded,) = asked.embedded(QUERY, encoding_format="base64")
            (told,) = asked.embedded(tokenizer(QUERY)["input_ids"])
        np.testing.assert_allclose(full(found, len(expected)), expected, atol=1e-5)
        indices = np.frombuffer(base64.b64decode(coded["indices"]), "<u4")
        values = np.frombuffer(base64.b64decode(coded["values"]), "<f4")
        np.testing.assert_array_equal(indices, found["indices"])
        np.testing.assert_allclose(values, found["values"], atol=1e-6)
        assert told["indices"] == found["indices"]

    def test_by_the_other_endpoints(self, encoder: Any, tmp_path: Path) -> None:
        theirs = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        norms = np.linalg.norm(theirs, axis=1)
        cosines = theirs @ theirs[0] / (norms * norms[0])
        with at_work(tmp_path / "model") as asked:
            body = {"source_sentence": TEXTS[0], "sentences": TEXTS}
            found = asked.whole("similarity", SimilarityRequest, **body)
            np.testing.assert_allclose(found, cosines, atol=1e-5)
            body = {"inputs": TEXTS[0], "normalize": True}
            given = asked.whole("feature-extraction", FeatureExtractionRequest, **body)
        np.testing.assert_allclose(full(given, theirs.shape[1]), theirs[0] / norms[0], atol=1e-5)

    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({"embedding_type": "dense"}, "embedding_type"),
            ({"embedding_type": "multi"}, "embedding_type"),
            ({"dimensions": 8}, "dimensions"),
            ({"prompt_name": "query"}, "prompt_name"),
        ],
    )
    def test_what_it_does_not_make(
        self, tmp_path: Path, options: dict[str, Any], param: str
    ) -> None:
        folder = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        with at_work(folder, "fill-mask") as asked, pytest.raises(RefusedError) as refused:
            asked.embedded("a", **options)
        assert refused.value.failure.param == param

    def test_a_dense_model_makes_none(self, tmp_path: Path) -> None:
        with at_work(tiny_bert(tmp_path / "bert", "Model")) as asked:
            assert len(asked.embedded("a", embedding_type="dense")[0]) == WIDTH
            with pytest.raises(RefusedError, match="one dense vector a text"):
                asked.embedded("a", embedding_type="sparse")

    def test_modules_that_are_none(self, tmp_path: Path) -> None:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

        bert = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        parts = [MLMTransformer(str(bert)), SpladePooling()]
        SparseEncoder(modules=parts, device="cpu").save_pretrained(str(tmp_path / "model"))
        config = tmp_path / "model" / "1_SpladePooling" / "config.json"
        config.write_text(json.dumps({"pooling_strategy": "mean"}))
        with pytest.raises(InspectionError, match="names the pooling 'mean'"):
            inspect(FolderFiles(tmp_path / "model"), "feature-extraction", PIPELINES)


def projection(**more: Any) -> Any:
    from sentence_transformers.base.modules import Dense

    return Dense(
        WIDTH,
        OUT,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
        **more,
    )


def saved(place: Path, *, transformer: Mapping[str, Any], mask: Mapping[str, Any]) -> Path:
    """As sentence-transformers writes it."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    bert = tiny_bert(place / "bert", "Model")
    parts = [
        Transformer(str(bert), **transformer),
        projection(),
        MultiVectorMask(**mask),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "who ", "document": "the "}
    encoder = MultiVectorEncoder(modules=parts, device="cpu", prompts=prompts)
    encoder.save_pretrained(str(place / "model"))
    return place / "model"


def own(place: Path) -> Path:
    return saved(
        place,
        transformer={"query_expansion": {"strategy": "min", "length": 32}, "document_length": 64},
        mask={"skiplist_words": [".", ","]},
    )


def attending(place: Path) -> Path:
    expansion = {"strategy": "fixed", "length": 32, "attend": True}
    return saved(place, transformer={"query_expansion": expansion}, mask={})


def plain(place: Path) -> Path:
    return saved(place, transformer={}, mask={"skiplist_words": ["."], "skiplist_tasks": ["query"]})


def pylate(place: Path) -> Path:
    """As PyLate writes it: two modules, and the rest in one file."""
    folder = saved(place, transformer={}, mask={})
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    dense = folder / modules[1]["path"] / "config.json"
    kept = ("in_features", "out_features", "bias", "activation_function")
    config = json.loads(dense.read_text())
    dense.write_text(json.dumps({name: config[name] for name in kept}))
    settings = {
        "model_type": "ColBERT",
        "prompts": {},
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 32,
        "document_length": 64,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [".", ",", "!"],
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def stanford(place: Path) -> Path:
    """As ColBERT's own code writes it: the last layer among the model's weights."""
    folder = tiny_bert(place / "bert", "Model")
    path = folder / "model.safetensors"
    weights = {f"bert.{name}": one for name, one in safetensors.torch.load_file(path).items()}
    weights["linear.weight"] = torch.randn(OUT, WIDTH)
    safetensors.torch.save_file(weights, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["HF_ColBERT"]
    (folder / "config.json").write_text(json.dumps(config))
    metadata = {
        "query_token_id": "in",
        "doc_token_id": "[unused1]",
        "query_maxlen": 32,
        "doc_maxlen": 64,
        "mask_punctuation": True,
        "attend_to_mask_tokens": False,
    }
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


class TestMultiVectors:
    @pytest.fixture(params=[own, attending, plain, pylate, stanford])
    def folder(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        return request.param(tmp_path)

    @pytest.fixture
    def encoder(self, folder: Path) -> Any:
        from sentence_transformers import MultiVectorEncoder

        # What they register with the tokenizer is not to be found by us.
        copy = shutil.copytree(folder, folder.parent / "theirs", dirs_exist_ok=True)
        return MultiVectorEncoder(str(copy), device="cpu")

    def test_as_sentence_transformers(self, folder: Path, encoder: Any) -> None:
        assert pushed(folder) == "feature-extraction"
        documents = encoder.encode_document(TEXTS, convert_to_numpy=True)
        (query,) = encoder.encode_query([QUERY], convert_to_numpy=True)
        assert len({len(one) for one in documents}) > 1
        with at_work(folder) as asked:
            for ours, theirs in zip(
                asked.embedded(*TEXTS, truncation=True), documents, strict=True
            ):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)
            (ours,) = asked.embedded(QUERY, prompt_name="query", embedding_type="multi")
            np.testing.assert_allclose(ours, query, atol=1e-5)
            scores = [(query @ one.T).max(1).sum() for one in documents]
            np.testing.assert_allclose(rerank(asked), scores, rtol=1e-4)

    @pytest.mark.parametrize("folder", [own, stanford], indirect=True)
    def test_converted(self, folder: Path, encoder: Any) -> None:
        documents = encoder.encode_document(TEXTS, convert_to_numpy=True)
        with at_work(folder, converted=True) as asked:
            for ours, theirs in zip(
                asked.embedded(*TEXTS, truncation=True), documents, strict=True
            ):
                np.testing.assert_allclose(ours, theirs, atol=1e-4)

    def test_by_the_other_endpoints(self, folder: Path, encoder: Any) -> None:
        documents = encoder.encode_document(TEXTS, convert_to_numpy=True)
        with at_work(folder) as asked:
            body = {"source_sentence": TEXTS[0], "sentences": TEXTS}
            found = asked.whole("similarity", SimilarityRequest, **body)
            scores = [(documents[0] @ one.T).max(1).mean() for one in documents]
            np.testing.assert_allclose(found, scores, atol=1e-5)
            body = {"inputs": TEXTS[0]}
            given = asked.whole("feature-extraction", FeatureExtractionRequest, **body)
            np.testing.assert_allclose(given, documents[0], atol=1e-5)
            (coded,) = asked.embedded(TEXTS[0], encoding_format="base64")
        rows = [np.frombuffer(base64.b64decode(one), "<f4") for one in coded]
        np.testing.assert_allclose(rows, documents[0], atol=1e-5)

    def test_longer_than_it_takes(self, tmp_path: Path) -> None:
        with at_work(pylate(tmp_path)) as asked:
            long = "paris " * 80
            with pytest.raises(RefusedError, match="length is 64"):
                asked.embedded(long)
            (cut,) = asked.embedded(long, truncation=True)
            assert len(cut) == 64
            with pytest.raises(RefusedError, match="length is 32"):
                asked.embedded(long, prompt_name="query")
            (cut,) = asked.embedded(long, prompt_name="query", truncation=True)
            assert len(cut) == 32
            (dense,) = asked.embedded("a", dimensions=OUT)
            assert len(dense[0]) == OUT
            with pytest.raises(RefusedError, match=f"{OUT} dimensions"):
                asked.embedded("a", dimensions=3)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [("query_length", 0), ("document_length", "long"), ("skiplist_words", {"a": 1})],
    )
    def test_settings_that_are_none(self, tmp_path: Path, setting: str, value: Any) -> None:
        folder = pylate(tmp_path)
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), setting: value}))
        with pytest.raises(InspectionError, match="config_sentence_transformers"):
            pushed(folder)

    def test_without_its_last_layer(self, tmp_path: Path) -> None:
        folder = stanford(tmp_path)
        path = folder / "model.safetensors"
        weights = safetensors.torch.load_file(path)
        del weights["linear.weight"]
        safetensors.torch.save_file(weights, path, {"format": "pt"})
        with pytest.raises(InspectionError, match=r"linear\.weight"):
            pushed(folder)


class TestNamedMeasures:
    """Of models whose files name a measure; the others keep that of their kind."""

    @pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
    def test_of_sparse_vectors(self, tmp_path: Path, name: str) -> None:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

        bert = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        encoder = SparseEncoder(
            modules=[MLMTransformer(str(bert)), SpladePooling()],
            device="cpu",
            similarity_fn_name=name,
            prompts={"query": "who ", "document": "the "},
        )
        encoder.save_pretrained(str(tmp_path / "model"))
        query, texts = encoder.encode_query([QUERY]), encoder.encode_document(TEXTS)
        source, others = encoder.encode([QUERY]), encoder.encode(TEXTS)
        with at_work(tmp_path / "model") as asked:
            found = rerank(asked)
            body = {"source_sentence": QUERY, "sentences": TEXTS}
            alike = asked.whole("similarity", SimilarityRequest, **body)
        tolerance = {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(found, encoder.similarity(query, texts)[0], **tolerance)
        np.testing.assert_allclose(alike, encoder.similarity(source, others)[0], **tolerance)

    @pytest.mark.parametrize("name", ["maxsim", "meanmaxsim"])
    def test_of_vectors_a_token(self, tmp_path: Path, name: str) -> None:
        from sentence_transformers import MultiVectorEncoder

        folder = own(tmp_path)
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "similarity_fn_name": name}))
        encoder = MultiVectorEncoder(str(folder), device="cpu")
        query, texts = encoder.encode_query([QUERY]), encoder.encode_document(TEXTS)
        with at_work(folder) as asked:
            found = rerank(asked)
        np.testing.assert_allclose(found, encoder.similarity(query, texts)[0], rtol=1e-4)
