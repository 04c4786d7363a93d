"""Every page passes axe's WCAG 2.2 AA rules in both themes and at several widths. No content
overflows the window, and no content shifts while it is read.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.demo.console.conftest import ROOT, Opener, sign_in
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
TABS = ("charts", "try", "calls", "events", "settings", "versions", "checks", "trials")
PAGES = (
    "", "try?model=tiny-chat", "artifacts", "agents", "videos", "batches", "files", "usage", "keys",
    "machine",
)  # fmt: skip
SETTLED_MS = 700
WIDEST = 2560
"""Window width in pixels at which only the layout is checked. axe finds the same there as at
1440.
"""
MOST_SHIFT = 0.1
"""Maximum cumulative layout shift of a good page, https://web.dev/articles/cls."""
WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) {
    if (one.hadRecentInput) continue;
    const name = ({ node }) => node?.className || node?.nodeName;
    window.shifts.push({ value: one.value, of: one.sources.map(name).join(" | ") });
  }
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is missing: npm ci, in frontend/")
    return AXE.read_text()


def found(page: "Page", axe: str) -> list[str]:
    page.wait_for_timeout(SETTLED_MS)
    # Evaluated as by the developer tools, because the page's own policy blocks such a script.
    page.evaluate(axe)
    result: Any = page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES
    )
    return [
        f"{page.url}: {violation['id']}: {violation['nodes'][0]['html'][:200]}"
        for violation in result["violations"]
    ]


def of_window(page: "Page", width: int) -> list[str]:
    """Returns the problems of a page's layout: content beyond the window's edge, and shifts while
    the page loaded.
    """
    wrong: list[str] = []
    beyond = page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    if beyond > 0:
        wrong.append(f"{page.url}: {beyond} pixels beyond the edge at {width}")
    shifts: list[dict[str, Any]] = page.evaluate("() => window.shifts")
    if sum(shift["value"] for shift in shifts) > MOST_SHIFT:
        wrong.append(f"{page.url}: moved at {width}: {shifts}")
    return wrong


# Each theme and each width occurs, but not each combination: one takes half a minute.
@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1440),
        ("dark", 390),
        pytest.param("light", WIDEST, marks=pytest.mark.release),
    ],
)
def test_pages(
    opened: Opener, demo: Server, state: Any, at: At, axe: str, theme: Any, width: int
) -> None:
    page = opened(color_scheme=theme, viewport={"width": width, "height": 900})
    page.add_init_script(WATCH_SHIFTS)
    wrong = found(page, axe)
    sign_in(page, state["account_key"]) if width > 800 else sign_in_narrow(page, state)
    deployment = state["deployments"]["tiny-ner"]["id"]
    paths = [*PAGES, *(f"deployments/{deployment}/{tab}" for tab in TABS)]
    with demo.client(state["account_key"]) as client:
        artifact = client.get("/v1/model-artifacts").json()["data"][0]["id"]
    for path in [*paths, f"artifacts/{artifact}"]:
        page.goto(at(path))
        page.locator("main h1").wait_for()
        if width == WIDEST:
            page.wait_for_timeout(SETTLED_MS)
        else:
            wrong += found(page, axe)
        wrong += of_window(page, width)
    assert wrong == []


def sign_in_narrow(page: "Page", state: Any) -> None:
    page.get_by_label("API key").fill(state["account_key"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Menu").wait_for()


def test_operators_pages(opened: Opener, demo: Server, at: At, axe: str) -> None:
    page = sign_in(opened(), demo.operator_key)
    wrong = found(page, axe)
    page.goto(at("accounts"))
    page.get_by_role("heading", name="Accounts").wait_for()
    wrong += found(page, axe)
    page.get_by_role("button", name="New account").click()
    wrong += found(page, axe)
    assert wrong == []
