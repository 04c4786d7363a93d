"""Sparse vectors and one vector per token, against sentence-transformers."""

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
from stoker.wire.protocol import Sharing
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
    """Calls a loaded model folder in the same way as the endpoints."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def embedded(self, *texts: Any, **options: Any) -> list[Any]:
        """Returns the embeddings of all texts from one call."""
        data = self.whole("embeddings", EmbeddingsRequest, input=list(texts), **options)["data"]
        return [item["embedding"] for item in data]

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
                # The conversion is adopted between two batches.
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
    answer = asked.whole("rerank", RerankRequest, query=QUERY, documents=TEXTS)
    scores_by_index = {result["index"]: result["relevance_score"] for result in answer["results"]}
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    return [scores_by_index[index] for index in range(len(TEXTS))]


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
            with at_work(folder, pipeline) as served:
                vectors = [full(vector, theirs.shape[1]) for vector in served.embedded(*TEXTS)]
                np.testing.assert_allclose(vectors, theirs, atol=1e-5)
                alone = full(served.embedded(TEXTS[1])[0], theirs.shape[1])
                np.testing.assert_allclose(alone, theirs[1], atol=1e-5)
                np.testing.assert_allclose(rerank(served), theirs @ query, rtol=1e-5)

    @pytest.mark.parametrize("encoder", [("max", "relu")], indirect=True)
    @pytest.mark.parametrize("pipeline", ["feature-extraction", "fill-mask"])
    def test_converted(self, encoder: Any, tmp_path: Path, pipeline: str) -> None:
        theirs = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        with at_work(tmp_path / "model", pipeline, converted=True) as served:
            vectors = [full(vector, theirs.shape[1]) for vector in served.embedded(*TEXTS)]
        np.testing.assert_allclose(vectors, theirs, atol=1e-4)

    def test_of_a_model_without_modules(self, tmp_path: Path) -> None:
        """A fill-mask model returns sparse vectors, because many SPLADE models are published
        without modules.
        """
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        folder = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        assert pushed(folder) == "fill-mask"
        model: Any = AutoModelForMaskedLM.from_pretrained(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        with torch.inference_mode():
            logits = model(**tokenizer(QUERY, return_tensors="pt")).logits[0]
        expected = torch.log1p(torch.relu(logits)).amax(0).numpy()
        with at_work(folder, "fill-mask") as served:
            (vector,) = served.embedded(QUERY, embedding_type="sparse")
            (coded,) = served.embedded(QUERY, encoding_format="base64")
            (from_tokens,) = served.embedded(tokenizer(QUERY)["input_ids"])
        np.testing.assert_allclose(full(vector, len(expected)), expected, atol=1e-5)
        indices = np.frombuffer(base64.b64decode(coded["indices"]), "<u4")
        values = np.frombuffer(base64.b64decode(coded["values"]), "<f4")
        np.testing.assert_array_equal(indices, vector["indices"])
        np.testing.assert_allclose(values, vector["values"], atol=1e-6)
        assert from_tokens["indices"] == vector["indices"]

    def test_by_the_other_endpoints(self, encoder: Any, tmp_path: Path) -> None:
        theirs = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        norms = np.linalg.norm(theirs, axis=1)
        cosines = theirs @ theirs[0] / (norms * norms[0])
        with at_work(tmp_path / "model") as served:
            body = {"source_sentence": TEXTS[0], "sentences": TEXTS}
            similarities = served.whole("similarity", SimilarityRequest, **body)
            np.testing.assert_allclose(similarities, cosines, atol=1e-5)
            body = {"inputs": TEXTS[0], "normalize": True}
            features = served.whole("feature-extraction", FeatureExtractionRequest, **body)
        np.testing.assert_allclose(full(features, theirs.shape[1]), theirs[0] / norms[0], atol=1e-5)

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
        with at_work(folder, "fill-mask") as served, pytest.raises(RefusedError) as refused:
            served.embedded("a", **options)
        assert refused.value.failure.param == param

    def test_a_dense_model_makes_none(self, tmp_path: Path) -> None:
        with at_work(tiny_bert(tmp_path / "bert", "Model")) as served:
            assert len(served.embedded("a", embedding_type="dense")[0]) == WIDTH
            with pytest.raises(RefusedError, match="one dense vector per text"):
                served.embedded("a", embedding_type="sparse")

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
    """Saves a model in the format of sentence-transformers."""
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
    """Saves a model in PyLate's format: two modules, and the rest in one file."""
    folder = saved(place, transformer={}, mask={})
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    dense = folder / modules[1]["path"] / "config.json"
    fields = ("in_features", "out_features", "bias", "activation_function")
    config = json.loads(dense.read_text())
    dense.write_text(json.dumps({name: config[name] for name in fields}))
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
    """Saves a model in the format of ColBERT's own code, with the last layer among the model's
    weights.
    """
    folder = tiny_bert(place / "bert", "Model")
    path = folder / "model.safetensors"
    weights = {f"bert.{name}": weight for name, weight in safetensors.torch.load_file(path).items()}
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

        # The library uses a copy, so that our code does not find the tokens that it registers with
        # the tokenizer.
        copy = shutil.copytree(folder, folder.parent / "theirs", dirs_exist_ok=True)
        return MultiVectorEncoder(str(copy), device="cpu")

    def test_as_sentence_transformers(self, folder: Path, encoder: Any) -> None:
        assert pushed(folder) == "feature-extraction"
        documents = encoder.encode_document(TEXTS, convert_to_numpy=True)
        (query,) = encoder.encode_query([QUERY], convert_to_numpy=True)
        assert len({len(document) for document in documents}) > 1
        with at_work(folder) as served:
            for ours, theirs in zip(
                served.embedded(*TEXTS, truncation=True), documents, strict=True
            ):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)
            (ours,) = served.embedded(QUERY, prompt_name="query", embedding_type="multi")
            np.testing.assert_allclose(ours, query, atol=1e-5)
            scores = [(query @ document.T).max(1).sum() for document in documents]
            np.testing.assert_allclose(rerank(served), scores, rtol=1e-4)

    @pytest.mark.parametrize("folder", [own, stanford], indirect=True)
    def test_converted(self, folder: Path, encoder: Any) -> None:
        documents = encoder.encode_document(TEXTS, convert_to_numpy=True)
        with at_work(folder, converted=True) as served:
            for ours, theirs in zip(
                served.embedded(*TEXTS, truncation=True), documents, strict=True
            ):
                np.testing.assert_allclose(ours, theirs, atol=1e-4)

    @pytest.mark.parametrize("folder", [own, attending], indirect=True)
    def test_packed_queries(self, folder: Path) -> None:
        """The model does not attend to expansion tokens, unless its settings say so, in a packed
        batch either.
        """
        local = Local("feature-extraction", folder)
        options = {"prompt_name": "query", "truncation": True}
        samples = [local.stages.preprocess(text, options)[0] for text in TEXTS]
        alone = [local.forward([sample])[0]["last_hidden_state"] for sample in samples]
        local.stages.sharing = Sharing.PACKED
        shorter = local.stages.preprocess(TEXTS[0], {"truncation": True})
        for ours, theirs in zip(local.forward([*samples, *shorter]), alone, strict=False):
            np.testing.assert_allclose(ours["last_hidden_state"], theirs, atol=1e-5)
        local.close()

    def test_by_the_other_endpoints(self, folder: Path, encoder: Any) -> None:
        documents = encoder.encode_document(TEXTS, convert_to_numpy=True)
        with at_work(folder) as served:
            body = {"source_sentence": TEXTS[0], "sentences": TEXTS}
            similarities = served.whole("similarity", SimilarityRequest, **body)
            scores = [(documents[0] @ one.T).max(1).mean() for one in documents]
            np.testing.assert_allclose(similarities, scores, atol=1e-5)
            body = {"inputs": TEXTS[0]}
            features = served.whole("feature-extraction", FeatureExtractionRequest, **body)
            np.testing.assert_allclose(features, documents[0], atol=1e-5)
            (coded,) = served.embedded(TEXTS[0], encoding_format="base64")
        rows = [np.frombuffer(base64.b64decode(one), "<f4") for one in coded]
        np.testing.assert_allclose(rows, documents[0], atol=1e-5)

    def test_longer_than_it_takes(self, tmp_path: Path) -> None:
        with at_work(pylate(tmp_path)) as served:
            long = "paris " * 80
            with pytest.raises(RefusedError, match="length is 64"):
                served.embedded(long)
            (cut,) = served.embedded(long, truncation=True)
            assert len(cut) == 64
            with pytest.raises(RefusedError, match="length is 32"):
                served.embedded(long, prompt_name="query")
            (cut,) = served.embedded(long, prompt_name="query", truncation=True)
            assert len(cut) == 32
            (dense,) = served.embedded("a", dimensions=OUT)
            assert len(dense[0]) == OUT
            with pytest.raises(RefusedError, match=f"{OUT} dimensions"):
                served.embedded("a", dimensions=3)

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
    """Models with files that name a similarity measure use it. Other models use the measure of
    their kind.
    """

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
        source, targets = encoder.encode([QUERY]), encoder.encode(TEXTS)
        with at_work(tmp_path / "model") as served:
            scores = rerank(served)
            body = {"source_sentence": QUERY, "sentences": TEXTS}
            alike = served.whole("similarity", SimilarityRequest, **body)
        tolerance = {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(scores, encoder.similarity(query, texts)[0], **tolerance)
        np.testing.assert_allclose(alike, encoder.similarity(source, targets)[0], **tolerance)

    @pytest.mark.parametrize("name", ["maxsim", "meanmaxsim"])
    def test_of_vectors_a_token(self, tmp_path: Path, name: str) -> None:
        from sentence_transformers import MultiVectorEncoder

        folder = own(tmp_path)
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "similarity_fn_name": name}))
        encoder = MultiVectorEncoder(str(folder), device="cpu")
        query, texts = encoder.encode_query([QUERY]), encoder.encode_document(TEXTS)
        with at_work(folder) as served:
            scores = rerank(served)
        np.testing.assert_allclose(scores, encoder.similarity(query, texts)[0], rtol=1e-4)
