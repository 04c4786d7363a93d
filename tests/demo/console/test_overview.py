"""The overview's list of deployments is sorted, and its pages lead to each other."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import stoker
from tests.artifacts.support import eventually
from tests.demo.console.conftest import Opener, sign_in
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]
RANKS = {"starting": 0, "stopping": 1, "ready": 2, "failed": 3, "idle": 5, "stopped": 6}


def names(page: "Page") -> list[str]:
    return page.locator(".deployments .cell-model a").all_inner_texts()


@pytest.fixture
def overview(console: "Page", demo: Server, state: Any) -> "Page":
    """Opens the overview while one model is loaded."""
    with demo.client(state["account_key"]) as client:
        body = {"model": "tiny-sentiment", "inputs": "Good."}
        client.post("/v1/classifications/text", json=body).raise_for_status()
    console.locator(".status", has_text="ready").first.wait_for()
    return console


def test_busy_deployments_are_first(overview: "Page") -> None:
    assert overview.get_by_label("Sort by").input_value() == "busy"
    assert "tiny-sentiment" in names(overview)[: overview.locator(".status.good").count()]
    idle = overview.locator(".deployments [data-row] .status").all_inner_texts()
    calm = [text.strip() in ("idle", "stopped") for text in idle]
    assert calm == sorted(calm)


def test_sorted_as_chosen(overview: "Page") -> None:
    order = overview.get_by_label("Sort by")
    order.select_option("Name")
    assert names(overview) == sorted(names(overview))
    order.select_option("Newest first")
    assert names(overview) != sorted(names(overview))
    order.select_option("Memory")
    loaded = overview.locator(".deployments [data-row]", has=overview.locator(".status.good"))
    assert eventually(lambda: names(overview)[0] in loaded.locator("a").all_inner_texts())


def test_a_cut_name_has_its_whole_text(overview: "Page") -> None:
    titles = overview.locator(".deployments .cell-model a").evaluate_all(
        "all => all.map(one => [one.title, one.innerText])"
    )
    assert len(titles) > 30
    assert all(title == text for title, text in titles)


TIME_STREAM = """
const Source = window.EventSource;
window.EventSource = class extends Source {
  constructor(...given) {
    super(...given);
    const begun = performance.now();
    this.addEventListener("hello", () => (window.openedAfter ??= performance.now() - begun));
  }
};
"""
ALONE_MS = 900
"""Time in milliseconds after which the page may load the list before the event stream is open, and
then once more.
"""


def test_the_list_is_loaded_once(console: "Page") -> None:
    row = console.locator(".deployments [data-row]").nth(10)
    # The list of the first page may still be loading.
    row.wait_for()
    asked: list[str] = []
    console.on("request", lambda request: asked.append(request.url))
    console.add_init_script(TIME_STREAM)
    console.reload()
    row.wait_for()
    console.get_by_text("Live", exact=True).wait_for()
    console.wait_for_timeout(1_000)
    lists = len([url for url in asked if "/v1/deployments?" in url])
    assert lists == 1 or console.evaluate("() => window.openedAfter") > ALONE_MS


def options(page: "Page", text: str) -> list[str]:
    page.get_by_role("combobox", name="Page, model").fill(text)
    found = page.locator(".palette [role=option]")
    found.first.wait_for()
    return [" ".join(one.split()) for one in found.all_inner_texts()]


def test_the_palette_prefers_words(overview: "Page", at: At, state: Any) -> None:
    overview.keyboard.press("Control+k")
    found = options(overview, "sent")
    assert found[0] == "tiny-sentiment Deployment · text-classification"
    assert all("sent" in one for one in found)
    assert options(overview, "documentation") == ["API reference Documentation"]
    assert options(overview, "captioner try")[0].startswith("Try tiny-captioner")
    # Letters with others between them count if nothing else does.
    assert any("tiny-encoder" in one for one in options(overview, "tncdr"))
    assert eventually(lambda: "tiny-sentiment Key" in options(overview, "tiny-sentiment"))
    overview.locator(".palette [role=option]", has_text="Artifact").first.click()
    overview.wait_for_url("**/artifacts/art_*")
    overview.get_by_role("heading", name="tiny-sentiment", level=1).wait_for()


def test_the_version_and_the_reference_are_at_hand(overview: "Page", demo: Server) -> None:
    places = overview.get_by_role("navigation", name="Pages")
    places.get_by_text(f"Stoker {stoker.__version__}", exact=True).wait_for()
    with overview.context.expect_page() as opened:
        places.get_by_role("link", name="API reference").click()
    opened.value.wait_for_load_state()
    assert opened.value.url == f"{demo.base_url}/docs"
    # The page contains only the operations in view.
    opened.value.get_by_text("/v1/classifications/text", exact=True).first.wait_for()


def test_sign_in_is_in_the_middle(opened: Opener) -> None:
    page = opened()
    card = page.locator(".sign-in-card").bounding_box()
    assert card
    assert card["y"] + card["height"] / 2 == pytest.approx(450, abs=2)
    assert page.get_by_role("link", name="API reference").is_visible()


def test_the_open_tab_is_in_sight_on_a_phone(opened: Opener, at: At, state: Any) -> None:
    page = opened(viewport={"width": 390, "height": 844})
    page.get_by_label("API key").fill(state["account_key"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Menu").wait_for()
    deployment = state["deployments"]["tiny-ner"]["id"]
    for tab in ("charts", "settings", "versions", "trials"):
        page.goto(at(f"deployments/{deployment}/{tab}"))
        chosen = page.locator(".tabs [aria-current]")
        chosen.wait_for()
        box = chosen.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    # A tap shows what a term means.
    assert not page.get_by_role("tooltip").first.is_visible()
    page.get_by_role("button", name="Readiness").click()
    tip = page.get_by_role("tooltip").first
    tip.wait_for()
    assert "hot: always" in tip.inner_text()
    box = tip.bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_a_page_whose_code_was_missed_comes_back(console: "Page") -> None:
    console.get_by_role("link", name="tiny-ner", exact=True).wait_for()
    console.context.set_offline(True)
    console.get_by_role("link", name="Machine", exact=True).click()
    console.get_by_text("The server is not responding.").wait_for()
    assert console.get_by_text("Page failed to load").count() == 0
    console.context.set_offline(False)
    console.get_by_role("heading", name="Engines").wait_for()
    assert console.url.endswith("/machine")


def test_charts_show_last_values_and_events(
    opened: Opener, demo: Server, at: At, state: Any
) -> None:
    with demo.client(state["account_key"]) as client:
        body = {"model": "tiny-ner", "inputs": "Anna lives in Berlin."}
        client.post("/v1/classifications/token", json=body).raise_for_status()
    page = sign_in(opened(), state["account_key"])
    page.goto(at(f"deployments/{state['deployments']['tiny-ner']['id']}"))
    memory = page.locator("figure.chart", has=page.locator("figcaption", has_text="Memory"))
    memory.locator(".u-legend .u-value").nth(1).wait_for()
    values = memory.locator(".u-legend .u-value").all_inner_texts()
    assert values[0] == "last"
    assert values[1].endswith(" MB")
    assert float(values[1].split()[0]) > 1
    note = page.get_by_text("Dashed lines:")
    note.wait_for()
    assert "replica ready" in note.inner_text()
