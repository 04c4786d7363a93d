"""Every text task over HTTP, alone and batched, against the transformers pipeline itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.compare import equal
from tests.support.deploying import deploy
from tests.support.models import tiny_bert, word_tokenizer
from tests.support.server import Server

TEXTS = [
    "my name is Clara and I live in Berkeley California",
    "the team keeps a model hot",
    "hot",
    "Clara keeps the model, and the team is hot in California. " * 5,
]
CASES = [
    ("token-classification", "ForTokenClassification", "/v1/classifications/token"),
    ("text-classification", "ForSequenceClassification", "/v1/classifications/text"),
    ("fill-mask", "ForMaskedLM", "/v1/fill-mask"),
]


def inputs(pipeline: str) -> list[str]:
    return [f"{text} [MASK]" for text in TEXTS] if pipeline == "fill-mask" else TEXTS


@pytest.fixture(scope="module", params=CASES, ids=[case[0] for case in CASES])
def case(request: pytest.FixtureRequest, server: Server, tmp_path_factory: Any):
    import transformers

    pipeline, head, path = request.param
    # A classifier with two labels can also rank documents.
    labels = 2 if pipeline == "text-classification" else 3
    folder: Path = tiny_bert(tmp_path_factory.mktemp("models") / pipeline, head, labels=labels)
    client = server.account()
    deploy(client, folder, pipeline)
    server.wait_ready()
    return pipeline, client, path, transformers.pipeline(pipeline, model=str(folder), device="cpu")


def reference(pipe: Any, pipeline: str, text: str, **parameters: Any) -> Any:
    if pipeline == "text-classification":
        parameters = {"top_k": None, **parameters}
    return pipe(text, **parameters)


class TestParity:
    def test_alone(self, case: Any) -> None:
        pipeline, client, path, pipe = case
        for text in inputs(pipeline):
            answer = client.post(path, json={"inputs": text}).raise_for_status().json()
            equal(answer, reference(pipe, pipeline, text))

    def test_list(self, case: Any) -> None:
        pipeline, client, path, pipe = case
        texts = inputs(pipeline)
        answer = client.post(path, json={"inputs": texts}).raise_for_status().json()
        equal(answer, [reference(pipe, pipeline, text) for text in texts])

    def test_list_of_one_stays_a_list(self, case: Any) -> None:
        pipeline, client, path, pipe = case
        text = inputs(pipeline)[0]
        answer = client.post(path, json={"inputs": [text]}).raise_for_status().json()
        equal(answer, [reference(pipe, pipeline, text)])

    def test_across_requests(self, case: Any) -> None:
        pipeline, client, path, pipe = case
        texts = inputs(pipeline) * 8
        expected = {text: reference(pipe, pipeline, text) for text in set(texts)}

        def ask(text: str) -> Any:
            return client.post(path, json={"inputs": text}).raise_for_status().json()

        with ThreadPoolExecutor(16) as pool:
            for text, answer in zip(texts, pool.map(ask, texts), strict=True):
                equal(answer, expected[text])


PARAMETERS = [
    ("token-classification", {"aggregation_strategy": strategy})
    for strategy in ("none", "simple", "first", "average", "max")
] + [
    ("token-classification", {"ignore_labels": []}),
    ("token-classification", {"ignore_labels": ["LABEL_0", "LABEL_2"]}),
    ("text-classification", {"top_k": 1}),
    ("text-classification", {"top_k": 2, "function_to_apply": "sigmoid"}),
    ("text-classification", {"function_to_apply": "none"}),
    ("fill-mask", {"top_k": 1}),
    ("fill-mask", {"targets": "team"}),
    ("fill-mask", {"targets": ["team", "model", "hot"], "top_k": 2}),
    # The model knows the first target in another form, and the second by its first letter.
    ("fill-mask", {"targets": ["Team", "zzzz"]}),
    ("fill-mask", {"targets": "Clara"}),
    ("fill-mask", {"targets": ["\u2603"]}),
]


class TestParameters:
    def test_against_the_pipeline(self, case: Any) -> None:
        pipeline, client, path, pipe = case
        for name, parameters in PARAMETERS:
            if name == pipeline:
                text = inputs(pipeline)[0]
                body = {"inputs": text, "parameters": parameters}
                answer = client.post(path, json=body).raise_for_status().json()
                equal(answer, reference(pipe, pipeline, text, **parameters), str(parameters))

    def test_bad_values(self, case: Any) -> None:
        pipeline, client, path, _ = case
        bad: list[tuple[dict[str, Any], str]] = [
            ({"inputs": []}, "inputs"),
            ({"inputs": 5}, "inputs"),
            ({"inputs": ["a", 5]}, "inputs[1]"),
            ({"inputs": ["a"] * 257}, "inputs"),
            ({}, "inputs"),
            ({"inputs": "a", "paramters": {}}, "paramters"),
            ({"inputs": "a", "parameters": []}, None),
        ]
        if pipeline != "token-classification":
            bad += [
                ({"inputs": "a", "top_k": 0}, "top_k"),
                ({"inputs": "a", "top_k": 1001}, "top_k"),
                ({"inputs": "a", "top_k": 1.5}, "top_k"),
            ]
        for body, param in bad:
            answer = client.post(path, json=body)
            assert answer.status_code == 400, (body, answer.text)
            assert answer.json()["error"]["param"] == param, (body, answer.text)

    def test_too_long(self, case: Any) -> None:
        pipeline, client, path, _ = case
        text = inputs(pipeline)[1] + " the team" * 200
        answer = client.post(path, json={"inputs": ["hot [MASK]", text]})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "inputs[1]"
        assert "at most 128" in error["message"]
        body = {"inputs": text, "truncation": True}
        client.post(path, json=body).raise_for_status()


def test_ranking_at_every_path_that_clients_know(case: Any) -> None:
    """Ranking works at all paths of clients. Cohere's clients add `v2/rerank` to their address,
    others `rerank` or `v1/rerank`.
    """
    pipeline, client, _, pipe = case
    if pipeline != "text-classification":
        pytest.skip("for text-classification only")
    body = {"model": pipeline, "query": TEXTS[0], "documents": TEXTS[1:3], "top_n": 2}
    last = pipe.model.config.id2label[pipe.model.config.num_labels - 1]
    pairs = [{"text": TEXTS[0], "text_pair": text} for text in TEXTS[1:3]]
    labels = pipe(pairs, top_k=None)
    scores = [next(item["score"] for item in found if item["label"] == last) for found in labels]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        answer = client.post(path, json=body).raise_for_status().json()
        assert answer["model"] == pipeline
        assert answer["usage"]["total_tokens"] > 0
        found = {item["index"]: item["relevance_score"] for item in answer["results"]}
        equal([found[0], found[1]], scores, path)
    assert client.post("/v3/rerank", json=body).status_code == 404


class TestWindows:
    """Entities of a text that exceeds the model's input length."""

    PATH = "/v1/classifications/token"
    TEXT = "my name is Clara and I live in Berkeley California. " * 20

    @pytest.fixture
    def tagger(self, case: Any) -> httpx.Client:
        if case[0] != "token-classification":
            pytest.skip("for token-classification only")
        return case[1]

    @pytest.mark.parametrize(("strategy", "stride"), [("simple", 0), ("first", 40), ("max", 100)])
    def test_as_the_pipeline(
        self, case: Any, tagger: httpx.Client, strategy: str, stride: int
    ) -> None:
        options = {"aggregation_strategy": strategy, "stride": stride}
        for text in (self.TEXT, TEXTS[0]):
            answer = tagger.post(self.PATH, json={"inputs": [text, "hot"], **options})
            equal(answer.raise_for_status().json()[0], case[3](text, **options))

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"stride": 10}, "needs an 'aggregation_strategy'"),
            ({"stride": 126, "aggregation_strategy": "simple"}, "must be less than 126"),
            ({"stride": -1, "aggregation_strategy": "simple"}, "greater than or equal to 0"),
        ],
    )
    def test_refusals(self, tagger: httpx.Client, options: Any, words: str) -> None:
        refused = tagger.post(self.PATH, json={"inputs": self.TEXT, **options})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "stride"
        assert words in refused.json()["error"]["message"]


class TestFillMask:
    @pytest.fixture
    def fill_mask(self, case: Any) -> httpx.Client:
        if case[0] != "fill-mask":
            pytest.skip("for fill-mask only")
        return case[1]

    def test_several_masks(self, case: Any, fill_mask: httpx.Client) -> None:
        text = "the [MASK] keeps a [MASK]"
        answer = fill_mask.post("/v1/fill-mask", json={"inputs": text}).json()
        assert [len(row) for row in answer] == [5, 5]
        equal(answer, case[3](text))

    def test_no_mask_names_the_token(self, fill_mask: httpx.Client) -> None:
        answer = fill_mask.post("/v1/fill-mask", json={"inputs": "no mask"})
        assert answer.status_code == 400
        assert "[MASK]" in answer.json()["error"]["message"]

    def test_several_masks_and_targets(self, case: Any, fill_mask: httpx.Client) -> None:
        body = {"inputs": "the [MASK] keeps a [MASK]", "targets": ["hot", "Team", "teams"]}
        answer = fill_mask.post("/v1/fill-mask", json=body).json()
        equal(answer, case[3](body["inputs"], targets=body["targets"]))

    def test_a_target_without_a_token(self, fill_mask: httpx.Client) -> None:
        body = {"inputs": "a [MASK]", "targets": ["team", " "]}
        answer = fill_mask.post("/v1/fill-mask", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "targets[1]"

    def test_more_results_than_words(self, fill_mask: httpx.Client) -> None:
        body = {"inputs": "a [MASK]", "top_k": 1000}
        answer = fill_mask.post("/v1/fill-mask", json=body).raise_for_status().json()
        assert len(answer) == len(word_tokenizer())


class TestPairs:
    @pytest.fixture
    def classifier(self, case: Any) -> httpx.Client:
        if case[0] != "text-classification":
            pytest.skip("for text-classification only")
        return case[1]

    PATH = "/v1/classifications/text"
    FIRST, SECOND = TEXTS[0], TEXTS[1]
    PAIR = {"text": FIRST, "text_pair": SECOND}

    @pytest.mark.parametrize(
        "given",
        [
            PAIR,
            [PAIR],
            [PAIR, {"text": SECOND, "text_pair": FIRST}],
            {"text": FIRST},
            [FIRST, PAIR],
        ],
        ids=["one", "a list of one", "a list", "without the second", "mixed"],
    )
    def test_as_the_pipeline(self, case: Any, classifier: httpx.Client, given: Any) -> None:
        answer = classifier.post(self.PATH, json={"inputs": given}).raise_for_status().json()
        pipe = case[3]
        listed = given if isinstance(given, list) else [given]
        expected = [pipe(pair, top_k=None) for pair in listed]
        equal(answer, expected if isinstance(given, list) else expected[0])

    def test_as_lists_of_two(self, case: Any, classifier: httpx.Client) -> None:
        body = {"inputs": [[self.FIRST, self.SECOND], self.FIRST], "top_k": 1}
        answer = classifier.post(self.PATH, json=body).raise_for_status().json()
        equal(answer, [case[3](pair, top_k=1) for pair in (self.PAIR, self.FIRST)])
        body = {"inputs": [self.FIRST, self.SECOND], "top_k": 1}
        answer = classifier.post(self.PATH, json=body).raise_for_status().json()
        equal(answer, [case[3](pair, top_k=1) for pair in (self.FIRST, self.SECOND)])

    def test_too_long(self, case: Any, classifier: httpx.Client) -> None:
        pair = {"text": "hot " * 90, "text_pair": "team " * 60}
        refused = classifier.post(self.PATH, json={"inputs": ["a", pair]})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "inputs[1]"
        assert "153 tokens; this model takes at most 128" in refused.json()["error"]["message"]
        body = {"inputs": pair, "truncation": True}
        answer = classifier.post(self.PATH, json=body).raise_for_status().json()
        equal(answer, case[3](pair, top_k=None, truncation=True, max_length=128))

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            ({"text_pair": "a"}, "inputs.text"),
            ({"text": "a", "text_pair": 5}, "inputs.text_pair"),
            ({"text": "a", "pair": "b"}, "inputs.pair"),
            ([["a", "b", "c"]], "inputs[0]"),
            ([["a", 5]], "inputs[0].text_pair"),
        ],
        ids=str,
    )
    def test_refusals(self, classifier: httpx.Client, given: Any, param: str) -> None:
        refused = classifier.post(self.PATH, json={"inputs": given})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param
