"""Fixtures that open the demo's console in Debian's Chromium. Tests are skipped if Chromium is
missing.

The headless shell is preferred. It has no windows, so it needs a third of the processor time.
"""

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
MEDIA = ROOT / "stoker" / "demo" / "media"
CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 30_000
"""Timeout of page actions in milliseconds. Allows for the load of a model."""

Opener = Callable[..., "Page"]


# The scope is not the session: Playwright's event loop runs as long as the fixture and would block
# all other tests that need one.
@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: make install-dev"
    )
    program = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened_at(browser: "Browser") -> Iterator[Opener]:
    """Opens addresses, each in a separate browser context. Fails if a page logged an error."""
    contexts: list[Any] = []
    errors: list[str] = []

    def open_page(address: str, **options: Any) -> "Page":
        context = browser.new_context(
            viewport=options.pop("viewport", {"width": 1440, "height": 900}), **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda note: "Content Security Policy" in note.text and errors.append(note.text),
        )
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def opened(opened_at: Opener, demo: Server) -> Opener:
    """Opens the demo's console, each time in a separate browser context."""
    return functools.partial(opened_at, f"{demo.base_url}/console/")


def account_key(client: httpx.Client) -> str:
    """Creates a key of scope `account`, with which people sign in."""
    made = client.post("/v1/api-keys", json={"scope": "account"}).raise_for_status()
    return made.json()["key"]


def sign_in(page: "Page", key: str) -> "Page":
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Pages").wait_for()
    return page


@pytest.fixture
def console(opened: Opener, state: Any) -> "Page":
    """Opens the console, signed in with the key of the demo's account."""
    return sign_in(opened(), state["account_key"])


@pytest.fixture
def at(demo: Server) -> Callable[[str], str]:
    """Returns a function that builds the address of a console page from its path."""
    return lambda path: f"{demo.base_url}/console/{path}"
