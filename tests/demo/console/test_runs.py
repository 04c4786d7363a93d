"""An agent is created and changed in the console. Its runs are followed, measured and deleted."""

import itertools
import json
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
        found = client.get(run).json()
        console.get_by_text(f"{found['usage']['steps']} steps").wait_for()
        rows = console.locator(".waterfall li")
        names = rows.locator(".name").all_inner_texts()
        assert names == ["Queued", "Step 1", "get_weather", "Step 2"]
        tokens = [
            text.replace(" in", "").replace(" out", "").split(", ")
            for text in rows.locator(".note").all_inner_texts()
        ]
        sums = [sum(int(pair[place]) for pair in tokens) for place in (0, 1)]
        assert sums == [found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]]
        # Each bar starts at or after the end of the earlier one.
        bars = rows.locator(".segment").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        assert all(one[1] <= other[0] + 3 for one, other in itertools.pairwise(bars))
        console.get_by_role("button", name="Delete", exact=True).click()
        console.get_by_text("permanently erased").wait_for()
        console.get_by_role("button", name="Delete run").click()
        console.wait_for_url(f"**/agents/{agent}")
        assert client.get(run).status_code == 404
        client.delete(f"/v1/agent/{agent}").raise_for_status()


def test_created_with_tools_and_changed(console: "Page", at: At, demo: Server, state: Any) -> None:
    console.goto(at("agents"))
    console.get_by_role("button", name="New agent").first.click()
    dialog = console.get_by_role("dialog")
    # The first field has the focus, so typed text is its value.
    console.keyboard.type("helper")
    assert dialog.get_by_label("Name").input_value() == "helper"
    dialog.get_by_label("Model").select_option("tiny-chat")
    tools = dialog.get_by_label("Tools (JSON)")
    tools.fill('[{"type": "function"')
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_text("The tools are not valid JSON, line 1, column 21").wait_for()
    tools.fill(json.dumps([WEATHER]))
    dialog.get_by_role("button", name="Create").click()
    console.wait_for_url("**/agents/agent_*")
    path = f"/v1/agent/{console.url.rsplit('/', 1)[1]}"
    with demo.client(state["account_key"]) as client:
        agent = client.get(path).raise_for_status().json()
        assert [tool["function"]["name"] for tool in agent["tools"]] == ["get_weather"]
        console.get_by_text("Tools: get_weather.").wait_for()
        console.get_by_role("button", name="Edit").click()
        dialog.get_by_label("Instructions").fill("Answer in one sentence.")
        dialog.get_by_label("Max steps").fill("3")
        dialog.get_by_role("button", name="Save").click()
        console.get_by_text("Answer in one sentence.").wait_for()
        changed = client.get(path).json()
        assert (changed["instructions"], changed["max_steps"]) == ("Answer in one sentence.", 3)
        assert changed["tools"] == agent["tools"]
        console.get_by_role("button", name="Delete").click()
        console.get_by_role("heading", name="Delete helper?").wait_for()
        console.get_by_role("button", name="Delete agent").click()
        console.wait_for_url("**/agents")
        assert client.get(path).status_code == 404
