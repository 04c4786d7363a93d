"""Images in chats and responses, with the demo's vision model and the real openai SDK."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

import stoker.demo
from stoker.inference.openai.messages import MAX_IMAGES
from tests.openai.conftest import MODEL as TEXT_MODEL
from tests.support.deploying import deploy
from tests.support.media import png
from tests.support.server import Server
from tools.demo_models import seeing

DEMO = Path(stoker.demo.__file__).parent
SCENE = (DEMO / "media" / "scene.png").read_bytes()
COLOUR = "What colour is the square?"
SEEN = "a red circle left of a blue square"


def uri(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def user(text: str, *urls: str) -> list[Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def items(text: str, *urls: str) -> list[Any]:
    parts: list[Any] = [{"type": "input_image", "image_url": url} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "input_text", "text": text}]}]


@pytest.fixture(scope="module")
def vision(server: Server) -> Iterator[httpx.Client]:
    """Yields an account with a vision model and a text model."""
    server.wait_ready()
    with server.account("vision") as client:
        deploy(client, DEMO / "models" / "tiny-vision", "seeing", readiness="hot")
        deploy(client, TEXT_MODEL, "text", engine="torch")
        yield client


@pytest.fixture(scope="module")
def client(server: Server, vision: httpx.Client) -> openai.OpenAI:
    key = str(vision.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


def ask(client: openai.OpenAI, messages: Any, **options: Any) -> str | None:
    answer = client.chat.completions.create(model="seeing", messages=messages, **options)
    return answer.choices[0].message.content


def refusal(client: openai.OpenAI, messages: Any, model: str = "seeing") -> dict[str, Any]:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=messages)
    body: Any = caught.value.body
    return body


class TestAnswers:
    def test_says_the_colour(self, client: openai.OpenAI):
        assert ask(client, user(COLOUR, uri(SCENE))) == "blue"
        assert ask(client, user("What colour is the circle?", uri(SCENE))) == "red"

    def test_base64_without_a_frame(self, client: openai.OpenAI):
        assert ask(client, user(COLOUR, base64.b64encode(SCENE).decode())) == "blue"

    @pytest.mark.parametrize("detail", ["auto", "low", "high"])
    def test_detail(self, client: openai.OpenAI, detail: str):
        messages = user(COLOUR, uri(SCENE))
        messages[0]["content"][0]["image_url"]["detail"] = detail
        assert ask(client, messages) == "blue"

    def test_streams(self, client: openai.OpenAI):
        chunks = list(
            client.chat.completions.create(
                model="seeing",
                messages=user("What is in the picture?", uri(SCENE)),
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == SEEN
        assert sum(map(bool, pieces)) > 3, "it came in pieces"
        assert chunks[-1].usage is not None

    def test_text_only(self, client: openai.OpenAI):
        assert ask(client, [{"role": "user", "content": "Hello!"}]) == seeing.GREETINGS["Hello!"]
        assert ask(client, user(COLOUR)) == seeing.UNSEEN

    def test_counts_the_tokens_of_images(self, client: openai.OpenAI):
        sizes: list[int] = []
        for urls in ((), (uri(SCENE),)):
            answer = client.chat.completions.create(model="seeing", messages=user(COLOUR, *urls))
            assert answer.usage is not None
            sizes.append(answer.usage.prompt_tokens)
        assert sizes[1] - sizes[0] == seeing.PLACES

    def test_several_choices(self, client: openai.OpenAI):
        messages = user(COLOUR, uri(SCENE))
        answer = client.chat.completions.create(model="seeing", messages=messages, n=3)
        assert [choice.message.content for choice in answer.choices] == ["blue"] * 3

    def test_many_at_once(self, client: openai.OpenAI):
        """Every picture receives its own answer. A third of the requests have no picture."""
        examples = [example for example in seeing.held_out(60) if "colo" in example[1]][:12]

        def both(number: int) -> str | None:
            scene, question, _ = examples[number]
            if number % 3 == 0:
                return ask(client, user("Hello!"))
            return ask(client, user(question, uri(png(scene.image))))

        with ThreadPoolExecutor(len(examples)) as threads:
            answers = list(threads.map(both, range(len(examples))))
        greeting = seeing.GREETINGS["Hello!"]
        expected = [answer if at % 3 else greeting for at, (_, _, answer) in enumerate(examples)]
        assert answers == expected

    def test_a_form(self, client: openai.OpenAI):
        form = {"structured_outputs": {"choice": ["It is blue.", "It is red."]}}
        text = ask(client, user(COLOUR, uri(SCENE)), extra_body=form)
        assert text in ("It is blue.", "It is red.")

    def test_responses(self, client: openai.OpenAI):
        response = client.responses.create(model="seeing", input=items(COLOUR, uri(SCENE)))
        assert response.output_text == "blue"
        with client.responses.stream(model="seeing", input=items(COLOUR, uri(SCENE))) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == "blue"

    def test_the_model_is_listed(self, vision: httpx.Client):
        row = vision.get("/v1/models/seeing").json()
        assert row["pipeline"] == "image-text-to-text"
        assert row["endpoints"][0] == "/v1/chat/completions"


class TestRefused:
    def test_an_image_for_a_model_of_texts(self, client: openai.OpenAI):
        error = refusal(client, user(COLOUR, uri(SCENE)), "text")
        assert error["param"] == "messages[0].content[0]"
        assert "text only" in error["message"]
        with pytest.raises(openai.BadRequestError, match="text only"):
            client.responses.create(model="text", input=items(COLOUR, uri(SCENE)))

    @pytest.mark.parametrize(
        "url",
        [
            uri(b"no image"),
            uri(SCENE[:100]),
            "data:image/png;base64,***",
            "data:image/png",
            "ftp://a.example/b.png",
            "http://127.0.0.1/a.png",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "/etc/passwd",
            " ",
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_broken_image(self, client: openai.OpenAI, url: str, stream: bool):
        messages = user(COLOUR, uri(SCENE), url)
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="seeing", messages=messages, stream=stream)
        body: Any = caught.value.body
        assert body["param"] == "messages[0].content[1].image_url"
        assert body["code"] == "invalid_media"
        assert ask(client, user(COLOUR, uri(SCENE))) == "blue", "the model lives on"

    def test_a_broken_image_of_a_response(self, client: openai.OpenAI):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="seeing", input=items(COLOUR, uri(b"no image")))
        body: Any = caught.value.body
        assert body["param"] == "input[0].content[0].image_url"

    def test_a_bomb(self, client: openai.OpenAI):
        bomb = png(Image.new("1", (9000, 9000)))
        error = refusal(client, user(COLOUR, uri(bomb)))
        assert error["param"] == "messages[0].content[0].image_url"
        assert "64,000,000 pixels" in error["message"]

    def test_too_many(self, client: openai.OpenAI):
        tiny = uri(png(Image.new("RGB", (8, 8))))
        error = refusal(client, user(COLOUR, *[tiny] * (MAX_IMAGES + 1)))
        assert error["param"] == f"messages[0].content[{MAX_IMAGES}].image_url"
        assert str(MAX_IMAGES) in error["message"]

    def test_more_than_the_model_takes(self, client: openai.OpenAI):
        error = refusal(client, user(COLOUR, *[uri(SCENE)] * MAX_IMAGES))
        assert error["param"] == "messages"
        assert f"maximum context length is {seeing.LONGEST} tokens" in error["message"]

    def test_a_placeholder_among_the_words(self, client: openai.OpenAI):
        for urls in ((), (uri(SCENE),)):
            error = refusal(client, user("What is <image>?", *urls))
            assert (error["param"], error["code"]) == ("messages", "invalid_request")

    @pytest.mark.parametrize(
        ("content", "field"),
        [
            ([{"type": "image_url"}], "messages[0].content[0].image_url"),
            ([{"type": "image_url", "image_url": {}}], "messages[0].content[0].image_url.url"),
            (
                [{"type": "image_url", "image_url": {"url": "x", "detail": "much"}}],
                "messages[0].content[0].image_url.detail",
            ),
            ([{"type": "input_audio", "input_audio": {}}], "messages[0].content[0]"),
        ],
    )
    def test_parts(self, client: openai.OpenAI, content: Any, field: str):
        assert refusal(client, [{"role": "user", "content": content}])["param"] == field

    @pytest.mark.parametrize("role", ["system", "assistant"])
    def test_images_of_others_than_the_user(self, client: openai.OpenAI, role: str):
        messages = user(COLOUR, uri(SCENE))
        messages[0]["role"] = role
        refusal(client, [*messages, *user("Hello!")])
        conversation: Any = [{**items(COLOUR, uri(SCENE))[0], "role": role}, *items("Hello!")]
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="seeing", input=conversation)
        body: Any = caught.value.body
        assert body["param"] == "input[0].content[0]"
