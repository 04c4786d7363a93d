"""Lists of ten thousand entries are shown at once and can be scrolled through."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import stoker.demo
from stoker.base.ids import Prefix, new_id
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.deploying import deploy
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

MODELS = Path(stoker.demo.__file__).parent / "models"
MANY = 10_000
MOST_AT_FIRST = 12
"""Maximum API calls of the overview until it is shown."""
MOST_ROWS = 80
SHOWN_MS = 2_000
LATE_MS = 200
SETTLED_MS = 500
"""Time in milliseconds from a response until the page has drawn it."""
# The rows are written into the server's SQLite.
pytestmark = pytest.mark.one_machine


def copied(data_dir: Path, table: str, **columns: Any) -> None:
    """Copies the latest row of a table `MANY` times. `columns` maps a column to the function that
    makes its value from the copy's number.
    """
    with closing(sqlite3.connect(data_dir / "stoker.db", timeout=60)) as database, database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute(f"SELECT * FROM {table} ORDER BY rowid DESC").fetchone())
        places = ", ".join(f":{name}" for name in row)
        database.executemany(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})",
            [
                {**row, **{name: make(number) for name, make in columns.items()}}
                for number in range(MANY)
            ],
        )


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, httpx.Client]]:
    """Runs a separate server with many keys and artifacts, written into its database because HTTP
    is too slow for so many.
    """
    with running(tmp_path_factory.mktemp("many") / "data", **WITHOUT_MODELS) as server:
        client = server.account("many")
        client.post("/v1/model-artifacts", json={"display_name": "one"}).raise_for_status()
        data = server.data_dir
        copied(
            data,
            "api_keys",
            id=lambda _: new_id(Prefix.KEY),
            public_id=lambda _: secrets.token_hex(8),
            name=lambda number: f"key {number}",
        )
        copied(
            data,
            "artifacts",
            id=lambda _: new_id(Prefix.ARTIFACT),
            display_name=lambda number: f"artifact {number}",
        )
        yield server, client


@pytest.fixture(scope="module")
def deployed(own: tuple[Server, httpx.Client]) -> httpx.Client:
    """Returns a client of an account with 10,001 deployments, four of which are stopped."""
    server, _ = own
    client = server.account("deployed")
    deploy(client, MODELS / "tiny-sentiment", "oldest")
    ids = sorted(new_id(Prefix.DEPLOYMENT) for _ in range(MANY))
    copied(
        server.data_dir,
        "deployments",
        id=ids.__getitem__,
        model=lambda number: f"model-{number:05}",
        live_version_id=lambda number: f"ver_{number}",
        desired=lambda number: "running" if number % 2_500 else "stopped",
    )
    return client


@pytest.fixture
def page(opened_at: Opener, own: tuple[Server, httpx.Client]) -> "Page":
    server, client = own
    return sign_in(opened_at(f"{server.base_url}/console/"), account_key(client))


@pytest.mark.parametrize(("path", "name"), [("keys", "key"), ("artifacts", "artifact")])
def test_pages_of_a_list(page: "Page", own: Any, path: str, name: str) -> None:
    page.goto(f"{own[0].base_url}/console/{path}", wait_until="commit")
    row = page.locator("main tbody tr")
    row.nth(49).wait_for(timeout=SHOWN_MS)
    first_page = set(row.locator("td:first-child").all_inner_texts())
    page.get_by_role("button", name="Older", exact=True).click()
    page.get_by_text("Page 2").wait_for()
    page.wait_for_function(
        "seen => !seen.includes(document.querySelector('main tbody td').innerText)",
        arg=sorted(first_page),
        timeout=SHOWN_MS,
    )
    other = set(row.locator("td:first-child").all_inner_texts())
    assert len(other) == 50
    assert all(cell.startswith(f"{name} ") for cell in other)
    assert not first_page & other


def answered_late(call: "Route") -> None:
    answer = call.fetch()
    call.request.frame.page.wait_for_timeout(LATE_MS)
    call.fulfill(response=answer)


class Overview:
    """Overview page of ten thousand deployments. Records the API requests of the page."""

    def __init__(self, opened_at: Opener, server: Server, client: httpx.Client) -> None:
        self.page = sign_in(opened_at(f"{server.base_url}/console/"), account_key(client))
        self.asked: list[str] = []
        self.page.on("request", self._note)
        self.page.reload()
        self.rows = self.page.locator(".deployments [data-row]")
        self.rows.nth(10).wait_for()

    def _note(self, request: Any) -> None:
        if "/v1/" in request.url:
            self.asked.append(request.url)

    def models(self) -> list[str]:
        return self.rows.locator(".cell-model a").all_inner_texts()

    def scroll_down(self) -> None:
        """Scrolls to the end of the list and waits until more rows are shown."""
        last = self.models()[-1]
        self.page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
        self.page.wait_for_function(
            "last => [...document.querySelectorAll('.cell-model a')].at(-1)?.innerText < last",
            arg=last,
        )
        assert self.rows.count() <= MOST_ROWS

    def wait_until_only(self, *models: str) -> None:
        self.page.wait_for_function(
            "wanted => JSON.stringify([...document.querySelectorAll('.cell-model a')]"
            ".map(one => one.innerText)) === JSON.stringify(wanted)",
            arg=list(models),
        )


@pytest.fixture
def overview(opened_at: Opener, own: Any, deployed: httpx.Client) -> Overview:
    return Overview(opened_at, own[0], deployed)


class TestOverview:
    def test_stands_after_few_calls(self, overview: Overview) -> None:
        overview.page.get_by_text(f"{MANY + 1:,} total").wait_for()
        assert overview.models()[0] == f"model-{MANY - 1:05}"
        assert overview.rows.count() <= MOST_ROWS
        assert len(overview.asked) <= MOST_AT_FIRST, overview.asked

    def test_goes_on_where_it_is_scrolled_to(self, overview: Overview) -> None:
        scrolls = 0
        while overview.models()[-1] > f"model-{MANY - 500:05}":
            overview.scroll_down()
            scrolls += 1
            assert scrolls < 20
        assert len(overview.asked) <= MOST_AT_FIRST + 8

    def test_keeps_its_place_when_the_stream_comes_late(self, overview: Overview) -> None:
        page, streams = overview.page, list[Any]()
        page.route("**/v1/events*", lambda stream: streams.append(stream))  # noqa: PLW0108 — bound
        page.reload()
        overview.rows.nth(10).wait_for()
        for _ in range(6):
            overview.scroll_down()
        page.wait_for_timeout(SETTLED_MS)
        place = overview.models()
        deepest = next(url for url in reversed(overview.asked) if "after=" in url)
        page.route("**/v1/deployments*after=*", answered_late)
        # The page reads its lists again once the stream is connected.
        with page.expect_request_finished(lambda request: request.url == deepest):
            for stream in streams:
                stream.continue_()
            for _ in range(20):
                page.wait_for_timeout(LATE_MS / 2)
                assert overview.models() == place
        overview.scroll_down()
        page.unroute_all(behavior="wait")

    def test_finds_any(self, overview: Overview) -> None:
        field = overview.page.get_by_label("Filter by model or pipeline")
        field.fill("MODEL-00017")
        overview.wait_until_only("model-00017")
        field.fill("oldest")
        overview.wait_until_only("oldest")
        field.fill("nothing of that kind")
        overview.page.get_by_text("No matches.").wait_for()

    def test_finds_those_of_a_status(self, overview: Overview) -> None:
        overview.page.get_by_label("Status").select_option("stopped")
        overview.wait_until_only("model-07500", "model-05000", "model-02500", "model-00000")

    def test_palette_finds_any(self, overview: Overview) -> None:
        overview.page.keyboard.press("Control+k")
        overview.page.get_by_role("combobox", name="Page, model").fill("model-00023")
        overview.page.get_by_role("option", name="model-00023 Deployment").click()
        overview.page.get_by_role("heading", name="model-00023", level=1).wait_for()

    def test_a_key_for_any(self, overview: Overview) -> None:
        overview.page.goto(overview.page.url.rstrip("/") + "/keys")
        overview.page.get_by_role("button", name="New key").first.click()
        overview.page.get_by_label("Access").select_option("deployment")
        overview.page.get_by_label("Search deployments").fill("model-00042")
        overview.page.get_by_label("model-00042", exact=True).check()
        overview.page.get_by_text("1 selected.").wait_for()


class TestFilters:
    """Filters of the API that the overview uses."""

    def models(self, client: httpx.Client, **query: Any) -> list[str]:
        names: list[str] = []
        after: dict[str, str] = {}
        while True:
            answer = client.get("/v1/deployments", params={"limit": 3, **query, **after})
            page = answer.raise_for_status().json()
            names += [deployment["model"] for deployment in page["data"]]
            if not page["has_more"]:
                return names
            assert len(page["data"]) == 3
            after = {"after": page["last_id"]}

    def test_by_what_they_are_called(self, deployed: httpx.Client) -> None:
        assert self.models(deployed, search="MODEL-0012") == [
            f"model-0012{number}" for number in reversed(range(10))
        ]
        assert self.models(deployed, search="model_0012", order="asc") == []
        assert self.models(deployed, search="%") == []
        first = deployed.get("/v1/deployments", params={"search": "Text-Class", "order": "asc"})
        assert first.json()["data"][0]["model"] == "oldest"

    def test_by_status(self, deployed: httpx.Client) -> None:
        stopped = ["model-00000", "model-02500", "model-05000", "model-07500"]
        assert self.models(deployed, status="stopped", order="asc") == stopped
        assert self.models(deployed, status="stopped") == stopped[::-1]
        assert self.models(deployed, status="stopped", search="2500") == ["model-02500"]
        assert self.models(deployed, status="failed") == []
        assert deployed.get("/v1/deployments", params={"status": "asleep"}).status_code == 400
