"""Takes screenshots of all console pages, at two widths and in both themes.

Requires a running `stoker demo` and its demo.json: python -m tools.screenshots .data/demo.json
shots/
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MEDIA = Path(__file__).parents[1] / "stoker" / "demo" / "media"
WIDTHS = (1440, 390)
THEMES = ("light", "dark")
HEIGHT = 900
SETTLED_MS = 1_500
TABS = ("charts", "try", "calls", "events", "settings", "versions", "checks", "trials")
PAGES = ("", "artifacts", "agents", "videos", "files", "usage", "keys", "machine")
TRIED = {
    "tiny-ner": None,
    "tiny-detector": "scene.png",
    "tiny-segmenter": "scene.png",
    "tiny-transcriber": "seven-three-one.wav",
    "tiny-encoder": None,
    "tiny-reranker": None,
}
"""Maps a model to its input file."""


def sign_in(page: "Page", key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.locator(".shell").wait_for()


def ask(page: "Page", file: str | None) -> None:
    page.get_by_role("button", name="Run", exact=True).wait_for()
    if file:
        page.locator("input[type=file]").set_input_files(MEDIA / file)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("heading", name="API call").wait_for()


def take(browser: "Browser", state: dict[str, Any], target: Path, width: int, theme: Any) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()

    def shoot(name: str) -> None:
        page.wait_for_timeout(SETTLED_MS)
        page.screenshot(path=target / f"{name}-{width}-{theme}.png")

    console = f"{state['base_url']}/console/"
    page.goto(console)
    shoot("sign-in")
    sign_in(page, state["account_key"])
    for path in PAGES:
        page.goto(console + path)
        shoot(path or "overview")
    deployment = state["deployments"]["tiny-ner"]["id"]
    for tab in TABS:
        page.goto(f"{console}deployments/{deployment}/{tab}")
        shoot(f"deployment-{tab}")
    for model, file in TRIED.items():
        page.goto(f"{console}try?model={model}")
        ask(page, file)
        shoot(f"playground-{model}")
    page.goto(f"{console}try?model=tiny-chat")
    page.get_by_label("Message", exact=True).fill("What is the capital of France?")
    page.get_by_role("button", name="Send").click()
    page.locator(".message.assistant").wait_for()
    shoot("playground-tiny-chat")
    context.clear_cookies()
    page.goto(console)
    sign_in(page, state["operator_key"])
    page.goto(f"{console}accounts")
    shoot("accounts")
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", type=Path, help="the demo's demo.json")
    parser.add_argument("target", type=Path, help="the folder that they go to")
    arguments = parser.parse_args()
    state = json.loads(arguments.state.read_text())
    arguments.target.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        parser.error("there is no Chromium: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--headless", "--disable-gpu"]
        )
        for width in WIDTHS:
            for theme in THEMES:
                take(browser, state, arguments.target, width, theme)
        browser.close()


if __name__ == "__main__":
    main()
