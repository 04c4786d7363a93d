"""What changes while a page is looked at."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import stoker.demo
from tests.demo.console.conftest import PATIENCE_MS, Opener, account_key, sign_in
from tests.support.deploying import deploy
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
MOST_REQUESTS, MOST_BYTES = 10, 45_000
"""Before the first paint: the document, scripts, styles, who is signed in."""
HEAR = """
const Source = window.EventSource;
window.heard = [];
window.EventSource = class extends Source {
  constructor(...given) {
    super(...given);
    for (const type of ["deployment", "deployment.deleted"]) {
      const hear = (event) => window.heard.push({ type, ...JSON.parse(event.data) });
      this.addEventListener(type, hear);
    }
  }
};
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, httpx.Client]]:
    with running(tmp_path_factory.mktemp("live") / "data", **WITHOUT_MODELS) as server:
        yield server, server.account("live")


@pytest.fixture
def page(opened_at: Opener, own: tuple[Server, httpx.Client]) -> "Page":
    server, client = own
    page = opened_at(f"{server.base_url}/console/")
    page.add_init_script(HEAR)
    return sign_in(page, account_key(client))


class TestEventsWhileAListIsRead:
    """The list says how things were before the event, and comes after it."""

    def reads(self, page: "Page", change: Callable[[], Any], has_heard: str) -> None:
        """Have the overview read its list, with a change between its answer and its arrival."""
        changed: list[bool] = []

        def late(route: "Route") -> None:
            answer = route.fetch()
            if not changed:
                changed.append(True)
                change()
                page.wait_for_function(has_heard, timeout=PATIENCE_MS)
            route.fulfill(response=answer)

        page.route("**/v1/deployments?*", late)
        page.reload()
        page.wait_for_function(has_heard)
        page.get_by_text("Live", exact=True).wait_for()

    def test_changed(self, page: "Page", own: tuple[Server, httpx.Client]) -> None:
        client = own[1]
        deploy(client, MODEL, "constant")
        made = deploy(client, MODEL, "changing")
        self.reads(
            page,
            lambda: client.post(f"/v1/deployments/{made['id']}/stop").raise_for_status(),
            f"() => heard.some(one => one.id === '{made['id']}' && one.status === 'stopped')",
        )
        row = page.locator("[data-row]", has_text="changing")
        # No event has told of this one: the list has arrived.
        page.locator("[data-row]", has_text="constant").wait_for()
        row.get_by_text("stopped").wait_for()
        assert row.get_by_text("idle").count() == 0

    def test_deleted(self, page: "Page", own: tuple[Server, httpx.Client]) -> None:
        client = own[1]
        deploy(client, MODEL, "staying")
        made = deploy(client, MODEL, "leaving")
        self.reads(
            page,
            lambda: client.delete(f"/v1/deployments/{made['id']}").raise_for_status(),
            "() => heard.some(one => one.type === 'deployment.deleted')",
        )
        page.locator("[data-row]", has_text="staying").wait_for()
        assert page.locator("[data-row]", has_text="leaving").count() == 0

    def test_made(self, page: "Page", own: tuple[Server, httpx.Client]) -> None:
        client = own[1]
        artifact = deploy(client, MODEL, "older")["artifact_id"]
        body = {"model": "newer", "artifact_id": artifact}
        self.reads(
            page,
            lambda: client.post("/v1/deployments", json=body).raise_for_status(),
            "() => heard.some(one => one.model === 'newer')",
        )
        page.locator("[data-row]", has_text="older").wait_for()
        page.locator("[data-row]", has_text="newer").wait_for()


class TestFirstPaint:
    """How much has to come before anything is drawn: what a slow line or machine waits for."""

    NEEDED = """() => {
      const at = performance.getEntriesByName("first-contentful-paint")[0].startTime;
      const pages = performance.getEntriesByType("navigation");
      const all = [...pages, ...performance.getEntriesByType("resource")];
      const before = all.filter((one) => one.responseStart <= at);
      return before.map((one) => [one.name, one.encodedBodySize]);
    }"""

    def needed(self, page: "Page") -> list[tuple[str, int]]:
        page.wait_for_function(
            "() => performance.getEntriesByName('first-contentful-paint').length > 0"
        )
        return page.evaluate(self.NEEDED)

    def test_of_signing_in(self, opened_at: Opener, own: tuple[Server, httpx.Client]) -> None:
        page = opened_at(f"{own[0].base_url}/console/")
        page.get_by_label("API key").wait_for()
        found = self.needed(page)
        assert len(found) <= MOST_REQUESTS, found
        assert sum(size for _, size in found) <= MOST_BYTES, found

    def test_of_the_overview(self, page: "Page") -> None:
        page.reload()
        page.get_by_role("heading", name="Overview").wait_for()
        found = self.needed(page)
        # Something stands before any list was read.
        assert len(found) <= MOST_REQUESTS + 2, found
        assert sum(size for name, size in found if "/v1/" not in name) <= MOST_BYTES, found
