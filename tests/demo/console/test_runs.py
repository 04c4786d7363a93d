"""A run of an agent is followed and deleted in the console."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.demo.test_answers import WEATHER
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]


def test_followed_and_deleted(console: "Page", at: At, demo: Server, state: Any) -> None:
    with demo.client(state["account_key"]) as client:
        wish = {"name": "weather", "model": "tiny-chat", "tools": [WEATHER]}
        agent = client.post("/v1/agent", json=wish).raise_for_status().json()["id"]
        console.goto(at(f"agents/{agent}"))
        console.get_by_label("Input").fill("What is the weather in Paris?")
        console.get_by_role("button", name="Run", exact=True).click()
        console.wait_for_url("**/runs/run_*")
        run = f"/v1/agent/{agent}/runs/{console.url.rsplit('/', 1)[1]}"
        field = console.get_by_label("get_weather")
        field.wait_for()
        assert "Tool call: get_weather" in console.locator(".timeline").inner_text()
        field.fill('{"temperature": 21, "condition": "sunny"}')
        console.get_by_role("button", name="Send tool output").click()
        # The page follows the run's events without a refresh.
        console.locator(".timeline").get_by_text("Completed").wait_for()
        assert "21" in console.locator(".timeline").inner_text()
        console.get_by_role("button", name="Delete").click()
        console.get_by_text("permanently erased").wait_for()
        console.get_by_role("button", name="Delete run").click()
        console.wait_for_url(f"**/agents/{agent}")
        assert client.get(run).status_code == 404
        client.delete(f"/v1/agent/{agent}").raise_for_status()
