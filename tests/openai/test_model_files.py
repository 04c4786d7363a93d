"""Settings in a language model's own files, through the server and on both engines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from stoker.models.chat.answers.detokenizing import Detokenizer
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.llm.checkpoint import load_model
from tests.artifacts.support import eventually
from tests.chat.test_tokenizer_kinds import wrapped
from tests.llm.support import VOCABULARY, tiny_llama, tokenizer
from tests.openai.conftest import ENGINES, wait_for_engine
from tests.support.deploying import deploy, deployment
from tests.support.server import Server

library: Any = transformers

TOKENS = 12
PROMPT = [5, 6, 7, 8, 5, 6]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("files") as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model with a generation_config.json of honoured and other fields."""
    path = tiny_llama(tmp_path_factory.mktemp("files"))
    first, second = generated(path, PROMPT)[:2]
    config = {
        "do_sample": False,
        "suppress_tokens": [first],
        "bad_words_ids": [[second]],
        "no_repeat_ngram_size": 2,
        "max_new_tokens": TOKENS,
        "num_beams": 4,
    }
    (path / "generation_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module", params=ENGINES)
def model(request: pytest.FixtureRequest, client: httpx.Client, folder: Path) -> str:
    """Returns the model id, which equals the name of its engine."""
    engine: str = request.param
    made = deploy(client, folder, engine, engine=engine, readiness="hot", dtype="float32")
    wait_for_engine(client, made["id"], engine)
    return engine


def generated(path: Path, prompt: list[int]) -> list[int]:
    made = load_model(path)
    made.generation_config.update(num_beams=1)
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        output = made.generate(ids, **options, max_new_tokens=TOKENS)
    return output[0, len(prompt) :].tolist()


EXTRA = "<extra>"


@pytest.fixture(scope="module", params=ENGINES)
def short_model(
    request: pytest.FixtureRequest, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Returns the id of a model with a token beyond its embedding in the tokenizer."""
    engine: str = request.param
    path = tiny_llama(tmp_path_factory.mktemp("short"))
    made = tokenizer()
    made.add_tokens([f"<fill{number}>" for number in range(VOCABULARY - len(made))] + [EXTRA])
    made.save_pretrained(path)
    row = deploy(client, path, f"short-{engine}", engine=engine, readiness="hot", dtype="float32")
    wait_for_engine(client, row["id"], engine)
    return f"short-{engine}"


class TestTokenBeyondTheEmbedding:
    @pytest.mark.parametrize(
        ("path", "body", "field"),
        [
            ("completions", {"prompt": f"a {EXTRA}"}, "prompt"),
            ("completions", {"prompt": ["a", f"a {EXTRA}"]}, "prompt[1]"),
            ("completions", {"prompt": [1, VOCABULARY]}, "prompt"),
            ("completions", {"prompt": [[1], [1, VOCABULARY]]}, "prompt[1]"),
            ("completions", {"prompt": [1, 10**9]}, "prompt"),
            ("completions", {"prompt": [1, -1]}, "prompt"),
            ("completions", {"prompt": f"a {EXTRA}", "echo": True, "logprobs": 1}, "prompt"),
            ("chat/completions", {"messages": [{"role": "user", "content": EXTRA}]}, "messages"),
            ("responses", {"input": EXTRA}, "input"),
            ("responses/input_tokens", {"input": EXTRA}, "input"),
        ],
    )
    def test_is_a_400(
        self, path: str, body: dict[str, Any], field: str, client: httpx.Client, short_model: str
    ) -> None:
        answer = client.post(f"/v1/{path}", json=body | {"model": short_model})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == field
        if EXTRA in str(body):
            assert f"'{EXTRA}'" in error["message"]

    def test_and_other_texts_are_answered(self, client: httpx.Client, short_model: str) -> None:
        body = {"model": short_model, "prompt": "a <fill0>", "max_tokens": 3}
        assert client.post("/v1/completions", json=body).status_code == 200


@pytest.fixture(scope="module")
def spaced(client: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the id of a model with a tokenizer that joins words by spaces."""
    path = tiny_llama(tmp_path_factory.mktemp("spaced"))
    made = wrapped("words")
    made.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    made.save_pretrained(path)
    deploy(client, path, "spaced", engine="torch", readiness="hot")
    return "spaced"


class TestTokenizerWithoutBytes:
    def test_log_probabilities_have_names_instead_of_bytes(
        self, client: httpx.Client, spaced: str
    ) -> None:
        body = {"model": spaced, "messages": [{"role": "user", "content": "the train"}]}
        chat_body = body | {
            "max_tokens": 3,
            "logprobs": True,
            "top_logprobs": 2,
            "ignore_eos": True,
        }
        completion = client.post("/v1/chat/completions", json=chat_body).raise_for_status().json()
        rows = completion["choices"][0]["logprobs"]["content"]
        assert len(rows) == 3
        assert all(entry["bytes"] is None for row in rows for entry in (row, *row["top_logprobs"]))
        body = {"model": spaced, "prompt": "the train", "echo": True, "logprobs": 1}
        completion = client.post("/v1/completions", json=body).raise_for_status().json()
        assert completion["choices"][0]["logprobs"]["tokens"][:2] == ["the", "train"]

    @pytest.mark.parametrize(
        ("form", "field"),
        [
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs"),
            ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ],
    )
    def test_forms_are_a_400_that_says_what_would_do(
        self, form: dict[str, Any], field: str, client: httpx.Client, spaced: str
    ) -> None:
        body = {"model": spaced, "messages": [{"role": "user", "content": "the train"}]}
        answer = client.post("/v1/chat/completions", json=body | form)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == field
        assert "byte-level" in answer.json()["error"]["message"]


class TestGenerationConfig:
    def test_is_honoured_as_by_generate(
        self, client: httpx.Client, model: str, folder: Path
    ) -> None:
        answer = client.post("/v1/completions", json={"model": model, "prompt": PROMPT}).json()
        hidden = Prompts(folder, max_length=320, vocabulary=VOCABULARY).hidden
        reader = Detokenizer(tokenizer().backend_tokenizer, hidden)
        expected = reader.add(generated(folder, PROMPT)) + reader.finish()
        assert answer["choices"][0]["text"] == expected
        assert answer["usage"]["completion_tokens"] == TOKENS
        assert answer["choices"][0]["finish_reason"] == "length"

    def test_requests_have_the_last_word(self, client: httpx.Client, model: str) -> None:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 5}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 5

    def test_what_is_not_honoured_is_a_notice_of_the_deployment(
        self, client: httpx.Client, model: str
    ) -> None:
        rows = client.get("/v1/deployments").json()["data"]
        (identifier,) = [entry["id"] for entry in rows if entry["model"] == model]
        assert eventually(lambda: bool(deployment(client, identifier)["notices"]))
        notices = deployment(client, identifier)["notices"]
        codes = {entry["code"]: entry["message"] for entry in notices}
        assert '"num_beams": 4 of generation_config.json' in codes["generation_field"]
