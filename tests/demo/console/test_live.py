"""Open pages show changes as they happen."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import stoker.demo
from tests.artifacts.support import eventually
from tests.demo.console.conftest import PATIENCE_MS, Opener, account_key, sign_in
from tests.support.deploying import deploy
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
MOST_REQUESTS, MOST_BYTES = 10, 45_000
"""Maximum requests and bytes before the first paint: the document, scripts, styles and the
session.
"""
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

SLOW_LOGS = """
const { fetch } = window;
window.fetch = async (request, options) => {
  const answer = await fetch(request, options);
  // Longer than between two reads.
  if (/logs/.test(request.url ?? request)) await new Promise((done) => setTimeout(done, 2_000));
  return answer;
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


PIXELS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const probe = document.createElement("span");
  probe.style.color = "var(--c1)";
  document.body.append(probe);
  const colour = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (colour.every((value, place) => data[at + place] === value)) count += data[at + 3] === 255;
  }
  return count;
}"""


def test_a_single_call_shows_in_the_charts(page: "Page", own: tuple[Server, httpx.Client]) -> None:
    server, client = own
    made = deploy(client, MODEL, "called-once")
    page.goto(f"{server.base_url}/console/deployments/{made['id']}")
    latency = page.locator("figure.chart", has_text="Latency")
    latency.get_by_text("No data in this period.").wait_for()
    assert latency.locator("canvas").count() == 0
    body = {"model": "called-once", "inputs": "Good."}
    client.post("/v1/classifications/text", json=body).raise_for_status()
    canvas = latency.locator("canvas")
    canvas.wait_for()
    # The colour of p99, which is drawn last. It is a point, because a line needs a second value.
    assert eventually(lambda: canvas.evaluate(PIXELS) > 4)


def test_lines_over_a_slow_link(page: "Page", own: tuple[Server, httpx.Client]) -> None:
    server, client = own
    made = deploy(client, MODEL, "slowly-followed")
    page.add_init_script(SLOW_LOGS)
    page.goto(f"{server.base_url}/console/deployments/{made['id']}/events")
    lines = page.get_by_label("Replica logs")
    for text in ("the first line", "the second line"):
        with (server.runs_in / "logs" / f"{made['id']}.log").open("a") as log:
            log.write(f"{text}\n")
        lines.get_by_text(text).wait_for()


def test_memory_in_use_is_the_sum_of_the_models(
    page: "Page", own: tuple[Server, httpx.Client]
) -> None:
    client = own[1]
    for name in ("in-use-1", "in-use-2"):
        deploy(client, MODEL, name)
        body = {"model": name, "inputs": "Good."}
        client.post("/v1/classifications/text", json=body).raise_for_status()

    def is_sum() -> bool:
        machine = client.get("/v1/machine").raise_for_status().json()
        replicas = [replica["memory_bytes"] or 0 for replica in machine["replicas"]]
        used = machine["memory"]["used_bytes"]
        return len(replicas) >= 2 and all(replicas) and used == sum(replicas)

    assert eventually(is_sum)
    page.get_by_text("in use").wait_for()


def test_a_dialog_begins_in_its_form(opened_at: Opener, own: tuple[Server, httpx.Client]) -> None:
    server = own[0]
    page = sign_in(opened_at(f"{server.base_url}/console/"), server.operator_key)
    page.goto(f"{server.base_url}/console/accounts")
    page.get_by_role("button", name="New account").click()
    page.keyboard.type("typed at once")
    page.keyboard.press("Enter")
    row = page.get_by_role("row", name="typed at once")
    row.wait_for()
    # The menu lists the account without a reload, and the account opens on its overview.
    choice = page.locator(".account-choice select")
    choice.locator("option", has_text="typed at once").wait_for(state="attached")
    row.get_by_role("button", name="Open").click()
    page.get_by_role("heading", name="Overview").wait_for()
    assert "typed at once" in choice.locator("option:checked").inner_text()


def test_an_account_is_deleted_once_its_name_is_typed(
    opened_at: Opener, own: tuple[Server, httpx.Client]
) -> None:
    server = own[0]
    client = server.account("to be deleted")
    deploy(client, MODEL, "deleted-with-its-account")
    page = sign_in(opened_at(f"{server.base_url}/console/"), server.operator_key)
    page.goto(f"{server.base_url}/console/accounts")
    row = page.get_by_role("row", name="to be deleted")
    row.get_by_role("button", name="Delete").click()
    button = page.get_by_role("button", name="Delete account")
    page.keyboard.type("to be delete")
    assert button.is_disabled()
    page.keyboard.type("d")
    button.click()
    row.wait_for(state="detached")
    assert client.get("/v1/deployments").status_code == 401


class TestEventsWhileAListIsRead:
    """A list that was read before an event but arrives after it does not undo the event."""

    def reads(self, page: "Page", change: Callable[[], Any], has_heard: str) -> None:
        """Makes the overview read its list, with a change between the server's answer and its
        arrival.
        """
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
        # No event mentioned this deployment, so the list has arrived.
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
    """Amount of data that is loaded before the first paint: a slow connection or machine waits for
    it.
    """

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
        requests = self.needed(page)
        assert len(requests) <= MOST_REQUESTS, requests
        assert sum(size for _, size in requests) <= MOST_BYTES, requests

    def test_of_the_overview(self, page: "Page") -> None:
        page.reload()
        page.get_by_role("heading", name="Overview").wait_for()
        requests = self.needed(page)
        # The page shows content before any list was read.
        assert len(requests) <= MOST_REQUESTS + 2, requests
        assert sum(size for name, size in requests if "/v1/" not in name) <= MOST_BYTES, requests
