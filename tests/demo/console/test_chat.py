"""Conversations with a chat model in the console."""

from collections.abc import Callable
from typing import TYPE_CHECKING

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
