"""`/tokenize`, `/detokenize` and `/decode`, against the tokenizers themselves."""

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.other_servers.conftest import (
    CHAT,
    CLASSIFIER,
    DEPLOYED,
    DRAWER,
    ENCODER,
    EXCLUDING,
    MODELS,
    PROMPTED,
    PROMPTS,
    TRANSLATOR,
    VISION,
)
from tests.other_servers.support import ask, refused
from tests.support.errors import error_of

TEXTS = [
    "How do I bake bread?",
    "Grüße aus Köln: 北京市 🥖🥖, naïve e\u0301clair",
    "\u0130stanbul\ttwo  spaces\n",
    "a [MASK] <|im_end|> </s> token",
]
WITH_TOKENIZER = [name for name in DEPLOYED if name != DRAWER]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Was ist los in Zürich?"},
]


def tokenizer_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


def listed(tokenizer: Any, text: str, *, special: bool) -> list[dict[str, Any]]:
    """Returns TEI's tokens of a text from the Rust library, without transformers."""
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=special)
    return [
        {
            "id": token,
            "text": name if is_special else text[start:stop],
            "special": bool(is_special),
            "start": None if is_special else start,
            "stop": None if is_special else stop,
        }
        for token, name, is_special, (start, stop) in zip(
            encoding.ids,
            encoding.tokens,
            encoding.special_tokens_mask,
            encoding.offsets,
            strict=True,
        )
    ]


@pytest.mark.parametrize("name", WITH_TOKENIZER)
class TestEveryModel:
    @pytest.mark.parametrize("special", [True, False])
    def test_list(
        self, client: httpx.Client, folders: dict[str, Path], name: str, special: bool
    ) -> None:
        tokenizer = tokenizer_of(folders[name])
        wanted = [listed(tokenizer, text, special=special) for text in TEXTS]
        found = ask(client, "/tokenize", name, inputs=TEXTS, add_special_tokens=special)
        assert found == wanted
        assert (
            ask(client, "/tokenize", name, inputs=TEXTS[1], add_special_tokens=special)
            == (wanted[1:2])
        )

    @pytest.mark.parametrize("special", [True, False])
    def test_prompt(
        self, client: httpx.Client, folders: dict[str, Path], name: str, special: bool
    ) -> None:
        tokenizer = tokenizer_of(folders[name])
        for text in TEXTS:
            ids = tokenizer(text, add_special_tokens=special)["input_ids"]
            body = {"prompt": text, "add_special_tokens": special}
            found = ask(client, "/tokenize", name, **body)
            assert (found["count"], found["tokens"], found["token_strs"]) == (len(ids), ids, None)
            found = ask(client, "/tokenize", name, **body, return_token_strs=True)
            assert found["token_strs"] == tokenizer.convert_ids_to_tokens(ids)

    def test_text_of_tokens(
        self, client: httpx.Client, folders: dict[str, Path], name: str
    ) -> None:
        tokenizer = tokenizer_of(folders[name])
        rows = [tokenizer(text)["input_ids"] for text in TEXTS]
        for skip in (True, False):
            wanted = [tokenizer.decode(row, skip_special_tokens=skip) for row in rows]
            found = ask(client, "/decode", name, ids=rows, skip_special_tokens=skip)
            assert found == wanted
            prompt = ask(client, "/detokenize", name, tokens=rows[0])["prompt"]
            assert prompt == tokenizer.decode(rows[0])
        assert ask(client, "/decode", name, ids=rows[0]) == [
            tokenizer.decode(rows[0], skip_special_tokens=True)
        ]


def test_lengths_of_models(client: httpx.Client) -> None:
    for name, most in ((ENCODER, 128), (CLASSIFIER, 128), (TRANSLATOR, 128), (CHAT, 1024)):
        assert ask(client, "/tokenize", name, prompt="a")["max_model_len"] == most


def test_round_trip(client: httpx.Client) -> None:
    """A byte-level tokenizer keeps every character."""
    for text in (*TEXTS, "", "\u0000", "\U0001d518\U0001d52b"):
        tokens = ask(client, "/tokenize", CHAT, prompt=text)["tokens"]
        assert ask(client, "/detokenize", CHAT, tokens=tokens) == {"prompt": text}


def test_long_texts(client: httpx.Client, folders: dict[str, Path]) -> None:
    """Neither the model's limit nor truncation applies."""
    text = "bread and trains, " * 2000
    for name in (ENCODER, CHAT):
        ids = tokenizer_of(folders[name])(text, verbose=False)["input_ids"]
        assert ask(client, "/tokenize", name, prompt=text)["tokens"] == ids
        assert [token["id"] for token in ask(client, "/tokenize", name, inputs=text)[0]] == ids


def test_prompt_name(client: httpx.Client, folders: dict[str, Path]) -> None:
    """Places count from the beginning of the prompt, which the model reads as well."""
    tokenizer = tokenizer_of(folders[PROMPTED])
    for name, prompt in ((None, PROMPTS["query"]), ("passage", PROMPTS["passage"])):
        named = {"prompt_name": name} if name else {}
        (found,) = ask(client, "/tokenize", EXCLUDING, inputs="Brot", **named)
        assert found == listed(tokenizer, prompt + "Brot", special=True)
    for model in (CLASSIFIER, CHAT, PROMPTED):
        error = refused(client, "/tokenize", model, inputs="a", prompt_name="other")
        assert error["param"] == "prompt_name"


class TestConversations:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"tools": [WEATHER]},
            {"add_generation_prompt": False},
            {"add_special_tokens": True},
            {"return_token_strs": True, "tools": [WEATHER]},
        ],
        ids=str,
    )
    def test_as_the_template(
        self, client: httpx.Client, folders: dict[str, Path], options: dict[str, Any]
    ) -> None:
        tokenizer = tokenizer_of(folders[CHAT])
        text = tokenizer.apply_chat_template(
            MESSAGES,
            tools=options.get("tools"),
            add_generation_prompt=options.get("add_generation_prompt", True),
            tokenize=False,
        )
        special = options.get("add_special_tokens", False)
        ids = tokenizer(text, add_special_tokens=special)["input_ids"]
        found = ask(client, "/tokenize", CHAT, messages=MESSAGES, **options)
        assert (found["count"], found["tokens"], found["max_model_len"]) == (len(ids), ids, 1024)
        strings = tokenizer.convert_ids_to_tokens(ids)
        assert found["token_strs"] == (strings if options.get("return_token_strs") else None)
        assert ask(client, "/detokenize", CHAT, tokens=ids) == {"prompt": text}

    def test_equals_the_usage_of_a_chat(self, client: httpx.Client) -> None:
        body = {"messages": MESSAGES, "tools": [WEATHER]}
        count = ask(client, "/tokenize", CHAT, **body)["count"]
        answer = ask(client, "/v1/chat/completions", CHAT, max_tokens=1, **body)
        assert answer["usage"]["prompt_tokens"] == count

    def test_continued(self, client: httpx.Client) -> None:
        messages = [*MESSAGES, {"role": "assistant", "content": "In Zürich ist"}]
        tokens = ask(client, "/tokenize", CHAT, messages=messages, continue_final_message=True)
        text = ask(client, "/detokenize", CHAT, tokens=tokens["tokens"])["prompt"]
        assert text.endswith("In Zürich ist")

    def test_images(self, client: httpx.Client) -> None:
        image = min((MODELS.parent / "media").glob("*.png"))
        url = f"data:image/png;base64,{base64.b64encode(image.read_bytes()).decode()}"
        parts = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "Which colour?"},
        ]
        messages = [{"role": "user", "content": parts}]
        count = ask(client, "/tokenize", VISION, messages=messages)["count"]
        answer = ask(client, "/v1/chat/completions", VISION, max_tokens=1, messages=messages)
        assert answer["usage"]["prompt_tokens"] == count
        without = ask(client, "/tokenize", VISION, messages=[{"role": "user", "content": "Which?"}])
        assert count > without["count"] + 3
        error = refused(client, "/tokenize", VISION, messages=messages, add_special_tokens=True)
        assert error["param"] == "add_special_tokens"
        assert refused(client, "/tokenize", CHAT, messages=messages)["param"].startswith("messages")

    @pytest.mark.parametrize(
        ("given", "param", "words"),
        [
            ({"messages": []}, "messages", "at least 1"),
            ({"messages": "hi"}, "messages", "valid array"),
            ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
            ({"messages": MESSAGES, "chat_template": "{{ x }}"}, "chat_template", "caller's"),
            (
                {"messages": MESSAGES, "chat_template_kwargs": {"unread": 1}},
                "chat_template_kwargs.unread",
                "not known",
            ),
            (
                {
                    "messages": MESSAGES,
                    "continue_final_message": True,
                    "add_generation_prompt": True,
                },
                "add_generation_prompt",
                "no new message",
            ),
            ({"messages": MESSAGES, "tools": [WEATHER, WEATHER]}, "tools[1].function.name", "has"),
            ({"messages": MESSAGES, "return_token_str": 1}, "return_token_str", "did you mean"),
        ],
    )
    def test_invalid(
        self, client: httpx.Client, given: dict[str, Any], param: str, words: str
    ) -> None:
        error = refused(client, "/tokenize", CHAT, **given)
        assert error["param"] == param and words in error["message"], error

    def test_a_model_without_a_template(self, client: httpx.Client) -> None:
        error = refused(client, "/tokenize", ENCODER, messages=MESSAGES)
        assert error["param"] == "messages" and "'prompt'" in error["message"]


class TestInvalid:
    @pytest.mark.parametrize("model", [ENCODER, CHAT])
    @pytest.mark.parametrize(
        ("path", "given", "param"),
        [
            ("/tokenize", {}, "inputs"),
            ("/tokenize", {"inputs": 1}, "inputs"),
            ("/tokenize", {"inputs": []}, "inputs"),
            ("/tokenize", {"inputs": ["a", 1]}, "inputs[1]"),
            ("/tokenize", {"inputs": ["a"] * 257}, "inputs"),
            ("/tokenize", {"inputs": "a", "add_special_tokens": 2}, "add_special_tokens"),
            ("/tokenize", {"inputs": "a", "prompt": "b"}, None),
            ("/tokenize", {"prompt": "a", "messages": MESSAGES}, None),
            ("/tokenize", {"prompt": ["a"]}, "prompt"),
            ("/tokenize", {"prompt": "a", "return_token_strs": "?"}, "return_token_strs"),
            ("/tokenize", {"prompt": "a", "promt_name": "?"}, "promt_name"),
            ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": "a"}, "tokens"),
            ("/detokenize", {"tokens": [1, True]}, "tokens"),
            ("/detokenize", {"tokens": [-1]}, "tokens"),
            ("/detokenize", {"tokens": [1.5]}, "tokens"),
            ("/detokenize", {"tokens": [1, 100_000]}, "tokens"),
            ("/detokenize", {"tokens": [1 << 40]}, "tokens"),
            ("/decode", {}, "ids"),
            ("/decode", {"ids": None}, "ids"),
            ("/decode", {"ids": [[1], 2]}, "ids"),
            ("/decode", {"ids": [1, [2]]}, "ids"),
            ("/decode", {"ids": [[1], [100_000]]}, "ids[1]"),
            ("/decode", {"ids": [[1]], "skip_special_tokens": "x"}, "skip_special_tokens"),
        ],
    )
    def test_fields(
        self, client: httpx.Client, model: str, path: str, given: dict[str, Any], param: str | None
    ) -> None:
        error = refused(client, path, model, **given)
        assert (error.get("param"), error["code"]) == (param, "invalid_request"), error
        if given.get("tokens") == [1, 100_000]:
            assert "below" in error["message"]

    @pytest.mark.parametrize("model", [ENCODER, CHAT])
    def test_bounds(self, client: httpx.Client, model: str) -> None:
        most = 1 << 20
        for path, body, param in (
            ("/tokenize", {"inputs": ["a" * (most // 2)] * 2 + ["b"]}, "inputs"),
            ("/tokenize", {"prompt": "a" * (most + 1)}, "prompt"),
        ):
            error = refused(client, path, model, **body)
            assert error["param"] == param and str(most) in error["message"], error
        # Of ids, the size of the body is the lower bound, unless an operator raises it.
        response = client.post("/detokenize", json={"model": model, "tokens": [1] * (most + 1)})
        assert response.status_code in (400, 413), response.text

    def test_models_without_a_tokenizer(self, client: httpx.Client) -> None:
        for path, body in (
            ("/tokenize", {"inputs": "a"}),
            ("/tokenize", {"prompt": "a"}),
            ("/tokenize", {"messages": MESSAGES}),
            ("/detokenize", {"tokens": [1]}),
            ("/decode", {"ids": [1]}),
        ):
            assert refused(client, path, DRAWER, **body)["code"] == "endpoint_not_supported"


def test_tokens_are_not_usage(client: httpx.Client) -> None:
    def tokens() -> int:
        rows = client.get("/v1/usage").raise_for_status().json()["data"]
        return sum(row.get("input_tokens", 0) + row.get("output_tokens", 0) for row in rows)

    ask(client, "/embed", ENCODER, inputs="a")
    before = tokens()
    for model in (ENCODER, CHAT):
        ask(client, "/tokenize", model, inputs=TEXTS)
        ask(client, "/tokenize", model, prompt=TEXTS[0])
        ask(client, "/decode", model, ids=[5, 6])
        ask(client, "/detokenize", model, tokens=[5, 6])
    ask(client, "/tokenize", CHAT, messages=MESSAGES)
    assert tokens() == before


def test_a_key_of_one_deployment_needs_no_model(client: httpx.Client) -> None:
    response = client.post("/tokenize", json={"inputs": "a"})
    assert response.status_code == 400
    assert error_of(response)["param"] == "model"
