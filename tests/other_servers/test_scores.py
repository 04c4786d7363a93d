"""`/predict` and `/rerank`, against the libraries themselves."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.other_servers.conftest import CLASSIFIER, ENCODER, RERANKER
from tests.other_servers.support import ask, close, refused
from tests.support.errors import error_of

TEXT, OTHER = "The food was good.", "The rooms were dirty and cold."
QUERY = "Will it rain tomorrow?"
TEXTS = ["The train is late.", "Do I need an umbrella tomorrow?", "Snow."]
LONG = " ".join(f"the bread of town number {number} is good" for number in range(60))


def logits(folder: Path, *texts: str, **options: Any) -> Any:
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.truncation_side = options.pop("side", "right")
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        str(folder), dtype=torch.float32
    )
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt", **options)).logits[0]


class TestPredict:
    def check(self, found: Any, folder: Path, *texts: str, raw: bool = False) -> None:
        scores = logits(folder, *texts)
        scores = scores if raw else scores.softmax(0)
        order = scores.argsort(descending=True).tolist()
        assert [row["label"] for row in found] == [["negative", "positive"][at] for at in order]
        close([row["score"] for row in found], scores[order])

    @pytest.mark.parametrize("raw", [False, True])
    def test_forms(self, client: httpx.Client, folders: dict[str, Path], raw: bool) -> None:
        folder = folders[CLASSIFIER]

        def predict(inputs: Any) -> Any:
            return ask(client, "/predict", CLASSIFIER, inputs=inputs, raw_scores=raw)

        self.check(predict(TEXT), folder, TEXT, raw=raw)
        self.check(predict([TEXT]), folder, TEXT, raw=raw)
        self.check(predict([TEXT, OTHER]), folder, TEXT, OTHER, raw=raw)
        batch = predict([[TEXT], [TEXT, OTHER], [OTHER]])
        for found, texts in zip(batch, ([TEXT], [TEXT, OTHER], [OTHER]), strict=True):
            self.check(found, folder, *texts, raw=raw)
        (found,) = predict([[TEXT]])
        self.check(found, folder, TEXT, raw=raw)

    def test_truncation(self, client: httpx.Client, folders: dict[str, Path]) -> None:
        assert (
            refused(client, "/predict", CLASSIFIER, inputs=[["a"], [LONG]])["param"] == "inputs[1]"
        )
        found: list[float] = []
        for side in ("left", "right"):
            options = {"side": side, "truncation": True, "max_length": 128}
            (row, _) = ask(
                client,
                "/predict",
                CLASSIFIER,
                inputs=f"{OTHER} {LONG} {TEXT}",
                truncate=True,
                truncation_direction=side,
                raw_scores=True,
            )
            wanted = logits(folders[CLASSIFIER], f"{OTHER} {LONG} {TEXT}", **options)
            close(row["score"], wanted.max())
            found.append(row["score"])
        assert found[0] != found[1]

    @pytest.mark.parametrize(
        "inputs",
        [
            "",
            [],
            ["a", "b", "c"],
            ["a", ["b"]],
            [["a"], "b"],
            [["a", "b", "c"]],
            [[]],
            [["a", 1]],
            7,
            {"text": "a"},
            [["a"]] * 257,
        ],
        ids=str,
    )
    def test_invalid(self, client: httpx.Client, inputs: Any) -> None:
        error = refused(client, "/predict", CLASSIFIER, inputs=inputs)
        assert (error["param"], error["error_type"]) == ("inputs", "Validation")

    def test_a_long_text_is_named(self, client: httpx.Client) -> None:
        body = {"model": CLASSIFIER, "inputs": [["a"], ["b", "c" * 1_000_001]]}
        assert error_of(client.post("/predict", json=body))["param"] == "inputs[1]"


class TestRerank:
    @pytest.mark.parametrize("raw", [False, True])
    def test_as_the_model(self, client: httpx.Client, folders: dict[str, Path], raw: bool) -> None:
        numbers = torch.stack([logits(folders[RERANKER], QUERY, text)[0] for text in TEXTS])
        numbers = numbers if raw else numbers.sigmoid()
        order = numbers.argsort(descending=True).tolist()
        found = ask(client, "/rerank", RERANKER, query=QUERY, texts=TEXTS, raw_scores=raw)
        assert [row["index"] for row in found] == order
        assert {*found[0]} == {"index", "score"}
        close([row["score"] for row in found], numbers[order])

    def test_return_text(self, client: httpx.Client) -> None:
        found = ask(client, "/rerank", RERANKER, query=QUERY, texts=TEXTS, return_text=True)
        assert [row["text"] for row in found] == [TEXTS[row["index"]] for row in found]

    def test_both_forms_share_the_path(self, client: httpx.Client) -> None:
        ours = ask(client, "/rerank", RERANKER, query=QUERY, documents=TEXTS)
        theirs = ask(client, "/rerank", RERANKER, query=QUERY, texts=TEXTS)
        results = ours["results"]
        assert [row["index"] for row in results] == [row["index"] for row in theirs]
        close([row["relevance_score"] for row in results], [row["score"] for row in theirs])
        both = refused(client, "/rerank", RERANKER, query=QUERY, texts=TEXTS, documents=TEXTS)
        assert "'documents'" in both["message"] and "'texts'" in both["message"]
        assert refused(client, "/rerank", RERANKER, query=QUERY)["param"] == "documents"
        # The path of the documented endpoint keeps its only form.
        assert refused(client, "/v1/rerank", RERANKER, query=QUERY, texts=TEXTS)["param"] == "texts"

    def test_encoders_compare_vectors(self, client: httpx.Client) -> None:
        ours = ask(client, "/v1/rerank", ENCODER, query=QUERY, documents=TEXTS)["results"]
        theirs = ask(client, "/rerank", ENCODER, query=QUERY, texts=TEXTS)
        close([row["score"] for row in theirs], [row["relevance_score"] for row in ours])
        body = {"query": QUERY, "texts": TEXTS, "raw_scores": True}
        assert refused(client, "/rerank", ENCODER, **body)["param"] == "raw_scores"

    def test_classifiers(self, client: httpx.Client, folders: dict[str, Path]) -> None:
        """A classifier with two labels ranks by the second one."""
        pair = logits(folders[CLASSIFIER], QUERY, TEXTS[0])
        (found,) = ask(client, "/rerank", CLASSIFIER, query=QUERY, texts=TEXTS[:1])
        close(found["score"], pair.softmax(0)[1])
        (found,) = ask(client, "/rerank", CLASSIFIER, query=QUERY, texts=TEXTS[:1], raw_scores=True)
        close(found["score"], pair[1] - pair[0])

    def test_truncation(self, client: httpx.Client, folders: dict[str, Path]) -> None:
        body = {"query": QUERY, "texts": ["a", LONG]}
        error = refused(client, "/rerank", RERANKER, **body)
        assert error["param"] == "texts[1]" and "'truncate': true" in error["message"]
        for side in ("left", "right"):
            options = {"side": side, "truncation": "only_second", "max_length": 128}
            wanted = logits(folders[RERANKER], QUERY, LONG, **options)
            found = ask(
                client,
                "/rerank",
                RERANKER,
                **body,
                truncate=True,
                truncation_direction=side,
                raw_scores=True,
            )
            close(next(row["score"] for row in found if row["index"] == 1), wanted[0])

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            ({"texts": TEXTS}, "query"),
            ({"query": "", "texts": TEXTS}, "query"),
            ({"query": QUERY, "texts": []}, "texts"),
            ({"query": QUERY, "texts": "a"}, "texts"),
            ({"query": QUERY, "texts": ["a", ""]}, "texts[1]"),
            ({"query": QUERY, "texts": ["a", 1]}, "texts[1]"),
            ({"query": QUERY, "texts": ["a"] * 257}, "texts"),
            ({"query": QUERY, "texts": ["a"], "top_n": 1}, "top_n"),
            ({"query": QUERY, "texts": ["a"], "raw_scores": "x"}, "raw_scores"),
        ],
    )
    def test_invalid(self, client: httpx.Client, given: dict[str, Any], param: str) -> None:
        assert refused(client, "/rerank", RERANKER, **given)["param"] == param

    def test_names_in_errors_are_the_clients(self, client: httpx.Client) -> None:
        error = refused(client, "/rerank", RERANKER, query=QUERY, texts=["a"], retrun_text=True)
        assert error["message"] == "Unknown field 'retrun_text'. Did you mean 'return_text'?"
