"""Conversations with a chat model in the console."""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.demo.console.conftest import MEDIA

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]
WEATHER = (
    '[{"type": "function", "function": {"name": "get_weather", "description": '
    '"Get the weather of a city.", "parameters": {"type": "object", "properties": '
    '{"city": {"type": "string"}}}}}]'
)


def said(page: "Page", text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def finished(page: "Page") -> str:
    # The button is still shown while an image is read.
    page.locator(".message.assistant").last.wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for()
    return page.locator(".message.assistant").last.inner_text()


def test_an_answer_is_streamed(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    said(console, "What is 7 plus 5?")
    assert "12" in finished(console)
    console.get_by_role("button", name="Try again").click()
    assert "12" in finished(console)
    assert console.locator(".message.assistant").count() == 1
    said(console, "What is 2 plus 2?")
    finished(console)
    assert console.locator(".message").count() == 4


def test_an_answer_is_stopped(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    # The page receives one event per second, so that the answer can be stopped while it is written.
    console.evaluate(
        """() => {
          const real = window.fetch;
          window.fetch = async (input, options) => {
            const answer = await real(input, options);
            if (!String(input).endsWith("/v1/chat/completions")) return answer;
            const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
            let aborted = false, held = "";
            options.signal.addEventListener("abort", () => (aborted = true));
            const slow = new ReadableStream({
              async pull(controller) {
                while (!held.includes("\\n\\n")) {
                  const { done, value } = await reader.read();
                  if (done) return controller.close();
                  held += value;
                }
                const end = held.indexOf("\\n\\n") + 2;
                controller.enqueue(held.slice(0, end));
                held = held.slice(end);
                await new Promise((resolve) => setTimeout(resolve, 1000));
                if (aborted) controller.error(options.signal.reason);
              },
            }, { highWaterMark: 0 });
            return new Response(slow.pipeThrough(new TextEncoderStream()), answer);
          };
        }"""
    )
    said(console, "What is the capital of France?")
    console.locator(".message.assistant").wait_for()
    console.get_by_role("button", name="Stop").last.click()
    console.get_by_text("Stopped.").wait_for()
    console.get_by_role("button", name="Send", exact=True).wait_for()


def test_tools_are_answered(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    console.get_by_text("Stop texts, JSON schema, tools").click()
    console.get_by_label("Tools").fill(WEATHER)
    said(console, "What is the weather in Paris?")
    answer = '{"temperature": 21, "condition": "sunny"}'
    console.get_by_label("Output of get_weather").fill(answer)
    assert "Paris" in console.locator(".message.assistant").inner_text()
    console.get_by_role("button", name="Send tool output").click()
    console.get_by_role("button", name="Send", exact=True).wait_for()
    assert "21" in finished(console)


def test_pictures_are_seen(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-vision"))
    console.locator("input[type=file]").set_input_files(MEDIA / "scene.png")
    said(console, "What colour is the square?")
    assert "blue" in finished(console)


def sent(page: "Page") -> dict[str, object]:
    """Returns the body of the API call that the page shows."""
    call = page.get_by_label("API call with curl").inner_text()
    return json.loads(call.rsplit("-d '", 1)[1].removesuffix("'"))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is 7 plus 5?", "12"),
        ("Count from 1 to 10.", "8, 9, 10"),
    ],
)
def test_examples_are_answered(console: "Page", at: At, question: str, answer: str) -> None:
    console.goto(at("try?model=tiny-chat"))
    console.get_by_role("button", name=question).click()
    console.get_by_text("first after").wait_for()
    assert answer in finished(console)
    note = console.locator(".card-head .note").first.inner_text()
    # Without a rate, if all tokens arrived together.
    assert re.fullmatch(r"\d+ tokens(, \d+\.\d tokens/s)?, first after \d+\.\d s", note)
    assert sent(console)["messages"] == [{"role": "user", "content": question}]


def test_options_are_sent(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    for label, value in (("Temperature", "0"), ("Top p", "0.9"), ("Seed", "7")):
        console.get_by_label(label, exact=True).fill(value)
    console.get_by_text("Stop texts, JSON schema, tools").click()
    console.get_by_label("Stop texts").fill("5\nsix")
    said(console, "Count from 1 to 10.")
    assert "1, 2, 3, 4," in finished(console)
    assert "6" not in finished(console)
    body = sent(console)
    assert {name: body[name] for name in ("temperature", "top_p", "seed", "stop")} == {
        "temperature": 0, "top_p": 0.9, "seed": 7, "stop": ["5", "six"],
    }  # fmt: skip


def test_an_answer_follows_a_schema(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    console.get_by_text("Stop texts, JSON schema, tools").click()
    field = console.get_by_label("JSON schema")
    field.fill('{"type": "object"')
    said(console, "Give me JSON with the name Anna and the age 30.")
    note = console.locator(".field", has=field).get_by_role("alert")
    assert note.inner_text().strip() == "The JSON schema must be a JSON object."
    field.fill(
        '{"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, '
        '"maximum": 120}}, "required": ["age"], "additionalProperties": false}'
    )
    console.get_by_role("button", name="Try again").click()
    finished(console)
    text = console.locator(".message.assistant .message-text").last.inner_text()
    answer = json.loads(text)
    assert list(answer) == ["age"]
    assert 0 <= answer["age"] <= 120


def test_an_option_out_of_range_is_named(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    field = console.get_by_label("Temperature", exact=True)
    field.fill("3")
    said(console, "Hello!")
    note = console.locator(".field", has=field).get_by_role("alert")
    note.wait_for()
    assert "less than or equal to 2" in note.inner_text()
