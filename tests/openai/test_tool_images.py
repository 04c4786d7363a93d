"""Images in outputs of tools reach a vision model, in chats, responses and messages."""

import base64
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.openai.conftest import MODEL as TEXT_MODEL
from tests.openai.test_vision import COLOUR, DEMO, SCENE, uri
from tests.support.deploying import deploy
from tests.support.media import png
from tests.support.server import Server
from tools.demo_models import seeing

SHOWING, DROPPING, REFUSING = "showing", "dropping", "refusing"
"""Models whose chat templates show images of tools, drop them, and refuse a user after a tool."""
QUESTION = "Look at it."
TEXT = "Loaded."
LABEL = "Output of the call 'c1' of 'view_image':"
_LOOP = "{%- for part in message.content -%}"
_REFUSES = (
    "{%- if loop.previtem is defined and loop.previtem.role == 'tool' and message.role == 'user' "
    "-%}{{- raise_exception('Roles must alternate.') }}{%- endif -%}"
)


@pytest.fixture(scope="module")
def vision(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    server.wait_ready()
    original = DEMO / "models" / "tiny-vision"
    template = (original / "chat_template.jinja").read_text()
    image = "'<image>' if part.type == 'image' else part.text"
    assert template.count(image) == 1
    drops = template.replace(
        image, "'<image>' if part.type == 'image' and message.role != 'tool' else part.text"
    )
    loop = "{%- for message in messages -%}"
    templates = {
        SHOWING: template,
        DROPPING: drops,
        REFUSING: drops.replace(loop, loop + _REFUSES),
    }
    with server.account("toolimages") as client:
        for name, source in templates.items():
            folder = tmp_path_factory.mktemp("models") / name
            shutil.copytree(original, folder)
            (folder / "chat_template.jinja").write_text(source)
            deploy(client, folder, name, readiness="hot", dtype="float32")
        deploy(client, TEXT_MODEL, "text", engine="torch")
        yield client


def other_scene() -> bytes:
    return png(Image.new("RGB", (64, 64), "yellow"))


def chat(*output: Any) -> list[Any]:
    call = {"name": "view_image", "arguments": '{"path": "a.png"}'}
    return [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [*output]},
        {"role": "user", "content": COLOUR},
    ]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def url(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri(content)}}


def chat_numbers(client: httpx.Client, model: str, messages: list[Any]) -> tuple[int, list[float]]:
    """Returns the number of the prompt's tokens, and the log probabilities of the first answer."""
    body = {
        "model": model,
        "messages": messages,
        "logprobs": True,
        "top_logprobs": 5,
        "max_tokens": 1,
        "min_tokens": 1,
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return answer["usage"]["prompt_tokens"], [entry["logprob"] for entry in first]


def response_body(model: str, content: bytes, kind: str = "function_call") -> dict[str, Any]:
    given = {"arguments": "{}"} if kind == "function_call" else {"input": "a.png"}
    output = [
        {"type": "input_text", "text": TEXT},
        {"type": "input_image", "image_url": uri(content), "detail": "high"},
    ]
    return {
        "model": model,
        "temperature": 0,
        "max_output_tokens": 1,
        "min_tokens": 1,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 5,
        "input": [
            {"role": "user", "content": QUESTION},
            {"type": kind, "call_id": "c1", "name": "view_image", **given},
            {"type": f"{kind}_output", "call_id": "c1", "output": output},
            {"role": "user", "content": COLOUR},
        ],
    }


def message_body(model: str, content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [text(TEXT), {"type": "image", "source": source}],
    }
    call: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "view_image", "input": {}}
    return {
        "model": model,
        "max_tokens": 16,
        "temperature": 0,
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, text(COLOUR)]},
        ],
    }


def expected(model: str, content: bytes) -> list[Any]:
    """Returns the chat that a model must be shown, with the image where its template shows it."""
    if model == SHOWING:
        return chat(text(TEXT), url(content))
    messages = chat(text(TEXT))
    messages[-1]["content"] = [text(LABEL), url(content), text(COLOUR)]
    return messages


@pytest.mark.parametrize("model", [SHOWING, DROPPING])
class TestImagesOfTools:
    def test_chat(self, vision: httpx.Client, model: str) -> None:
        size, scores = chat_numbers(vision, model, chat(text(TEXT), url(SCENE)))
        assert (size, scores) == chat_numbers(vision, model, expected(model, SCENE))
        same_size, others = chat_numbers(vision, model, chat(text(TEXT), url(other_scene())))
        assert same_size == size
        assert max(abs(a - b) for a, b in zip(scores, others, strict=True)) > 0.01
        without, _ = chat_numbers(vision, model, chat(text(TEXT)))
        assert size > without

    @pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
    def test_responses(self, vision: httpx.Client, model: str, kind: str) -> None:
        scores: list[list[float]] = []
        for content in (SCENE, other_scene()):
            body = response_body(model, content, kind)
            answer = vision.post("/v1/responses", json=body).raise_for_status().json()
            part = answer["output"][0]["content"][0]
            scores.append([entry["logprob"] for entry in part["logprobs"][0]["top_logprobs"]])
        _, same = chat_numbers(vision, model, chat(text(TEXT), url(SCENE)))
        assert scores[0] == pytest.approx(same, abs=1e-4)
        assert max(abs(a - b) for a, b in zip(*scores, strict=True)) > 0.01

    def test_messages(self, vision: httpx.Client, model: str) -> None:
        body = message_body(model, SCENE)
        answer = vision.post("/v1/messages", json=body).raise_for_status().json()
        chat_body = {
            "model": model,
            "messages": chat(text(TEXT), url(SCENE)),
            "max_tokens": 16,
            "temperature": 0,
        }
        same = vision.post("/v1/chat/completions", json=chat_body).raise_for_status().json()
        said = "".join(part["text"] for part in answer["content"])
        assert said == (same["choices"][0]["message"]["content"] or "")
        assert answer["usage"]["input_tokens"] == same["usage"]["prompt_tokens"]

    def test_image_only(self, vision: httpx.Client, model: str) -> None:
        """An output without a text, as the last message."""
        messages = chat(url(SCENE))[:-1]
        size, scores = chat_numbers(vision, model, messages)
        _, others = chat_numbers(vision, model, chat(url(other_scene()))[:-1])
        assert max(abs(a - b) for a, b in zip(scores, others, strict=True)) > 0.01
        assert size > seeing.PLACES

    def test_stored(self, vision: httpx.Client, model: str) -> None:
        """A conversation continues after a stored response whose input holds the image."""
        body = {**response_body(model, SCENE), "store": True, "max_output_tokens": 16}
        first = vision.post("/v1/responses", json=body).raise_for_status().json()
        items = vision.get(f"/v1/responses/{first['id']}/input_items?order=asc").json()["data"]
        assert items[2]["output"][1]["image_url"] == uri(SCENE)
        more = {"model": model, "input": COLOUR, "previous_response_id": first["id"]}
        vision.post("/v1/responses", json=more).raise_for_status()


class TestRefused:
    def test_text_model(self, vision: httpx.Client) -> None:
        answer = vision.post("/v1/responses", json=response_body("text", SCENE))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "input[2].output[1]"
        assert "this model reads text only" in error["message"]
        body = {"model": "text", "messages": chat(text(TEXT), url(SCENE))}
        error = vision.post("/v1/chat/completions", json=body).json()["error"]
        assert error["param"] == "messages[2].content[1]"
        answer = vision.post("/v1/messages", json=message_body("text", SCENE))
        assert answer.status_code == 400
        assert "reads text only" in answer.json()["error"]["message"]

    def test_no_place(self, vision: httpx.Client) -> None:
        """The template drops images of tools, and refuses a user's message after them."""
        body = response_body(REFUSING, SCENE)
        del body["input"][3]
        error = vision.post("/v1/responses", json=body)
        assert error.status_code == 400
        assert error.json()["error"]["param"] == "input[2].output[1]"
        assert "accepts it neither there" in error.json()["error"]["message"]
        assert "Roles must alternate" in error.json()["error"]["message"]

    def test_literal_placeholder(self, vision: httpx.Client) -> None:
        """A text with the placeholder does not stand for an image that was dropped."""
        messages = chat(text(TEXT), url(SCENE))
        messages[0]["content"] = "Look at <image> here."
        body = {"model": DROPPING, "messages": messages}
        answer = vision.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "'<image>'" in answer.json()["error"]["message"]
