"""Reranking against the model called directly and against sentence-transformers."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.inspection import InspectionError, inspect
from stoker.models.stages.cross_encoder import ACTIVATIONS, score
from stoker.models.tasks.registry import PIPELINES
from stoker.models.tasks.rerank import RerankRequest
from tests.inspection.builders import FolderFiles
from tests.support.compare import equal
from tests.support.language import tokenizer
from tests.support.local import MODEL, Local, RefusedError
from tests.support.models import tiny_bert

QUERY = "where is the tower?"
DOCUMENTS = ["in paris", "clara lives in london, and the river is where maria was", "music", "a"]
BODY = {"query": QUERY, "documents": DOCUMENTS}


def bert(folder: Path, labels: int = 1) -> None:
    _save(folder, "Bert", labels, 128)


def roberta(folder: Path, labels: int = 1) -> None:
    _save(folder, "Roberta", labels, 130)


def _save(folder: Path, name: str, labels: int, positions: int) -> None:
    words = tokenizer(name.lower())
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        pad_token_id=words.pad_token_id,
        initializer_range=0.5,
        num_labels=labels,
    )
    transformers.set_seed(0)
    getattr(transformers, f"{name}ForSequenceClassification")(config).save_pretrained(folder)
    words.save_pretrained(folder)


def check(answer: dict[str, Any], results: Sequence[dict[str, Any]], tokens: int) -> None:
    """Checks an answer in Jina's format."""
    assert set(answer) == {"id", "model", "results", "usage"}
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == MODEL
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    equal(answer["results"], results)


def tokens(folder: Path, documents: Sequence[str], query: str = QUERY) -> int:
    words: Any = transformers.AutoTokenizer.from_pretrained(folder)
    cut = {"truncation": "only_second", "max_length": 128}
    return sum(len(words(query, document, **cut)["input_ids"]) for document in documents)


def direct(
    folder: Path, documents: Sequence[str], query: str = QUERY, length: int = 128
) -> list[float]:
    """Computes the scores directly, one pair at a time."""
    words: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores: list[float] = []
    for document in documents:
        cut = {"truncation": "only_second", "max_length": length}
        with torch.inference_mode():
            logits = model(**words(query, document, return_tensors="pt", **cut)).logits[0]
        scores.append(float(logits.sigmoid()[0] if len(logits) == 1 else logits.softmax(-1)[-1]))
    return scores


def ranked(scores: Sequence[float]) -> list[dict[str, Any]]:
    results = [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]
    return sorted(results, key=lambda result: -result["relevance_score"])


@pytest.fixture(
    scope="module",
    params=[(bert, "text-ranking"), (roberta, "text-ranking"), (bert, "text-classification")],
    ids=lambda param: f"{param[0].__name__} {param[1]}",
)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Path]]:
    make, pipeline = request.param
    folder: Path = tmp_path_factory.mktemp(make.__name__)
    make(folder)
    local = Local(pipeline, folder)
    yield local, folder
    local.close()


class TestParity:
    def test_each_document_alone(self, case: Any) -> None:
        local, folder = case
        for document in DOCUMENTS:
            answer = local.ask({"query": QUERY, "documents": [document]}, "rerank")
            check(answer, ranked(direct(folder, [document])), tokens(folder, [document]))

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, folder = case
        expected = ranked(direct(folder, DOCUMENTS))
        local.batches.clear()
        answers = local.ask_together([BODY] * 3, "rerank")
        for answer in answers:
            check(answer, expected, tokens(folder, DOCUMENTS))
        assert len({answer["id"] for answer in answers}) == 3
        assert max(local.batches) > 1

    def test_as_sentence_transformers(self, case: Any) -> None:
        import sentence_transformers

        local, folder = case
        encoder = sentence_transformers.CrossEncoder(str(folder), device="cpu")
        theirs = encoder.rank(QUERY, DOCUMENTS, activation_fn=torch.nn.Sigmoid())
        ours = local.ask(BODY, "rerank")["results"]
        assert [result["index"] for result in ours] == [result["corpus_id"] for result in theirs]
        equal(
            [result["relevance_score"] for result in ours],
            [float(result["score"]) for result in theirs],
        )

    def test_a_cut_document(self, case: Any) -> None:
        local, folder = case
        long = "paris " * 200
        answer = local.ask({**BODY, "documents": [long], "truncation": True}, "rerank")
        check(answer, ranked(direct(folder, [long])), 128)

    def test_documents_of_some_tokens(self, case: Any) -> None:
        local, folder = case
        documents = ["paris " * 200, "in paris", "clara lives in london"]
        words: Any = transformers.AutoTokenizer.from_pretrained(folder)
        alone = [
            len(words(document, add_special_tokens=False)["input_ids"]) for document in documents
        ]
        whole = [len(words(QUERY, document)["input_ids"]) for document in documents]
        lengths = [
            length - max(0, alone_length - 3)
            for length, alone_length in zip(whole, alone, strict=True)
        ]
        assert lengths != whole
        scores = [
            direct(folder, [document], length=length)[0]
            for document, length in zip(documents, lengths, strict=True)
        ]
        body = {**BODY, "documents": documents, "max_tokens_per_doc": 3}
        check(local.ask(body, "rerank"), ranked(scores), sum(lengths))


def test_two_labels_score_by_the_last(tmp_path: Path) -> None:
    bert(tmp_path, labels=2)
    local = Local("text-ranking", tmp_path)
    try:
        expected = ranked(direct(tmp_path, DOCUMENTS))
        check(local.ask(BODY, "rerank"), expected, tokens(tmp_path, DOCUMENTS))
    finally:
        local.close()


def test_by_embeddings(tmp_path: Path) -> None:
    local = Local("feature-extraction", tiny_bert(tmp_path, "Model"))
    try:
        query, *vectors = (
            torch.tensor(vector) for vector in local.ask({"inputs": [QUERY, *DOCUMENTS]})
        )
        cosines = [
            float(query @ document_vector / query.norm() / document_vector.norm())
            for document_vector in vectors
        ]
        words: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
        sizes = [len(ids) for ids in words([QUERY, *DOCUMENTS])["input_ids"]]
        read = sizes[0] * len(DOCUMENTS) + sum(sizes[1:])
        check(local.ask(BODY, "rerank"), ranked(cosines), read)
        cut = local.ask(
            {**BODY, "documents": ["the team keeps"], "max_tokens_per_doc": 2}, "rerank"
        )
        whole = local.ask({**BODY, "documents": ["the team"]}, "rerank")
        check(cut, whole["results"], whole["usage"]["total_tokens"])
        long = {**BODY, "documents": ["a", "paris " * 200]}
        with pytest.raises(RefusedError) as refused:
            local.ask(long, "rerank")
        assert refused.value.failure.param == "documents[1]"
        with pytest.raises(RefusedError) as refused:
            local.ask({**BODY, "query": "paris " * 200}, "rerank")
        assert refused.value.failure.param == "query"
    finally:
        local.close()


def settled(folder: Path, *, config: Any = None, sentence: Any = None, bias: float = 0) -> Path:
    """Saves a cross-encoder with settings of sentence-transformers and logits around `bias`."""
    bert(folder)
    library: Any = transformers
    model: Any = library.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias.fill_(bias)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    if sentence:
        modules = [{"idx": 0, "name": "0", "path": "", "type": f"{MODULES}.Transformer"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        about = {"model_type": "CrossEncoder", **sentence}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
        (folder / "sentence_bert_config.json").write_text(
            json.dumps({"transformer_task": "sequence-classification"})
        )
    return folder


MODULES = "sentence_transformers.base.modules.transformer"
IDENTITY = "torch.nn.modules.linear.Identity"


class TestSettingsOfSentenceTransformers:
    @pytest.mark.parametrize(
        "given",
        [
            {"config": {"sentence_transformers": {"activation_fn": IDENTITY}}},
            {"config": {"sbert_ce_default_activation_function": IDENTITY}},
            {
                "config": {
                    "sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"
                }
            },
            {"config": {"sentence_transformers": {"version": "5.1.0"}}},
            {"sentence": {"activation_fn": "torch.nn.modules.activation.GELU"}},
            {"sentence": {"activation_fn": "torch.nn.modules.activation.LogSigmoid"}},
            {
                "sentence": {"activation_fn": IDENTITY},
                "config": {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}},
            },
            {
                "sentence": {
                    "prompts": {"query": "a ", "rank": "clara lives "},
                    "default_prompt_name": "rank",
                }
            },
            {"sentence": {"prompts": {"query": "clara lives "}, "default_prompt_name": None}},
        ],
        ids=lambda given: str(given)[:60],
    )
    def test_are_read(self, tmp_path: Path, given: dict[str, Any]) -> None:
        from sentence_transformers import CrossEncoder

        folder = settled(tmp_path, **given)
        theirs = CrossEncoder(str(folder), device="cpu").rank(QUERY, DOCUMENTS)
        pipeline = inspect(FolderFiles(folder), None, PIPELINES).pipeline
        for served in (pipeline, "text-ranking"):
            with closing(Local(served, folder)) as local:
                ours = local.ask(BODY, "rerank")["results"]
            assert [result["index"] for result in ours] == [
                result["corpus_id"] for result in theirs
            ]
            equal(
                [result["relevance_score"] for result in ours],
                [float(result["score"]) for result in theirs],
            )

    @pytest.mark.parametrize("bias", [30, 60, -30, -800])
    def test_saturated_scores_are_in_the_order_of_the_logits(
        self, tmp_path: Path, bias: float
    ) -> None:
        folder = settled(tmp_path, bias=bias)
        words: Any = transformers.AutoTokenizer.from_pretrained(folder)
        library: Any = transformers
        model: Any = library.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.inference_mode():
            logits = [
                model(**words(QUERY, one, return_tensors="pt")).logits.item() for one in DOCUMENTS
            ]
        best = sorted(range(len(logits)), key=lambda index: -logits[index])
        assert best != list(range(len(logits)))
        with closing(Local("text-ranking", folder)) as local:
            ours = local.ask(BODY, "rerank")["results"]
        assert [one["index"] for one in ours] == best

    def test_every_activation(self) -> None:
        logits = [-800.0, -3.0, -0.4, 0.0, 0.4, 2.0, 7.0, 30.0]
        for name in ACTIVATIONS:
            expected = getattr(torch.nn, name)()(torch.tensor(logits))
            computed = [score(name, torch.tensor(logit)) for logit in logits]
            torch.testing.assert_close(torch.tensor(computed), expected, msg=name)

    def test_an_unknown_activation(self, tmp_path: Path) -> None:
        name = "torch.nn.modules.activation.Softmax"
        folder = settled(tmp_path, config={"sentence_transformers": {"activation_fn": name}})
        with pytest.raises(InspectionError, match=r"config.json names the activation .*Softmax"):
            inspect(FolderFiles(folder), "text-ranking", PIPELINES)
        assert inspect(FolderFiles(folder), None, PIPELINES).pipeline == "text-classification"
        with closing(Local("text-classification", folder)) as local:
            with pytest.raises(RefusedError, match=r"cannot rank documents: config.json names"):
                local.ask(BODY, "rerank")
            assert local.ask({"inputs": "paris"})

    def test_pairs_that_are_written_as_messages(self, tmp_path: Path) -> None:
        folder = settled(tmp_path, sentence={"activation_fn": IDENTITY})
        settings = {
            "transformer_task": "sequence-classification",
            "modality_config": {"message": {}},
        }
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        with pytest.raises(InspectionError, match="as chat messages"):
            inspect(FolderFiles(folder), "text-ranking", PIPELINES)

    def test_one_that_scores_by_a_language_model(self, tmp_path: Path) -> None:
        """A reranker that scores with a language model is rejected. As a text generator it could
        not rank.
        """
        from sentence_transformers import CrossEncoder

        words = tokenizer("gpt2")
        words.add_tokens(["yes", "no"])
        config = transformers.LlamaConfig(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
        words.save_pretrained(tmp_path / "llama")
        folder = tmp_path / "ranks"
        CrossEncoder(str(tmp_path / "llama"), device="cpu").save_pretrained(str(folder))
        with pytest.raises(
            InspectionError, match=r"modules.json names the module LogitScore"
        ) as caught:
            inspect(FolderFiles(folder), None, PIPELINES)
        assert caught.value.path == "modules.json"
        assert inspect(FolderFiles(folder), "text-generation", PIPELINES)


def test_more_than_two_labels_rank_nothing(tmp_path: Path) -> None:
    bert(tmp_path, labels=3)
    refused = pytest.raises(RefusedError, match="returns 3 labels")
    with closing(Local("text-classification", tmp_path)) as local, refused:
        local.ask(BODY, "rerank")


class TestParameters:
    def test_top_n_and_documents(self, case: Any) -> None:
        local, folder = case
        best = ranked(direct(folder, DOCUMENTS))[:2]
        body = {**BODY, "top_n": 2, "return_documents": True}
        objects = {**body, "documents": [{"text": document} for document in DOCUMENTS]}
        expected = [result | {"document": {"text": DOCUMENTS[result["index"]]}} for result in best]
        # The tokens of all documents count, even if the answer contains only some.
        check(local.ask(body, "rerank"), expected, tokens(folder, DOCUMENTS))
        check(local.ask(objects, "rerank"), expected, tokens(folder, DOCUMENTS))

    def test_a_long_document_is_named(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError, match="at most 128") as refused:
            local.ask({**BODY, "documents": ["a", "paris " * 200]}, "rerank")
        assert refused.value.failure.param == "documents[1]"

    def test_a_query_without_room_for_the_document(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError, match="leaves none"):
            local.ask({**BODY, "query": "paris " * 200, "truncation": True}, "rerank")

    @pytest.mark.parametrize(
        "change",
        [
            {"documents": []},
            {"documents": ["a"] * 1001},
            {"documents": [{"title": "a"}]},
            {"documents": [""]},
            {"documents": "a"},
            {"query": ""},
            {"top_n": 0},
            {"max_tokens_per_doc": 0},
            {"rank_fields": ["text"]},
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_refusals(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match=next(iter(change))):
            RerankRequest.model_validate(BODY | change)
