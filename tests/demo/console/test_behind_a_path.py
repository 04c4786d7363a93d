"""The console works if a reverse proxy serves the server below a path."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

import stoker.demo
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.deploying import deploy
from tests.support.path_proxy import PathProxy, proxying
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PREFIX = "/a/stoker"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PathProxy, Server]]:
    data = tmp_path_factory.mktemp("behind") / "data"
    with (
        proxying(PREFIX) as proxy,
        running(data, **WITHOUT_MODELS, STOKER_PUBLIC_URL=proxy.base_url) as server,
    ):
        proxy.port = urlsplit(server.base_url).port
        yield proxy, server


@pytest.fixture
def client(own: tuple[PathProxy, Server]) -> httpx.Client:
    return own[1].account("behind")


@pytest.fixture
def page(
    opened_at: Opener, own: tuple[PathProxy, Server], client: httpx.Client
) -> Iterator["Page"]:
    proxy, _ = own
    yield sign_in(opened_at(f"{proxy.base_url}/console"), account_key(client))
    # No request went outside the path.
    assert proxy.strangers == []


def test_pages_and_events(
    page: "Page", own: tuple[PathProxy, Server], client: httpx.Client
) -> None:
    base = f"{own[0].base_url}/console"
    page.get_by_text("Live", exact=True).wait_for()
    made = deploy(client, MODEL, "behind")
    page.get_by_role("table", name="Deployments").get_by_role("link", name="behind").click()
    page.wait_for_url(f"{base}/deployments/{made['id']}")
    page.get_by_role("heading", name="behind", level=1).wait_for()
    with page.expect_response(lambda answer: answer.url.endswith(f"{made['id']}/stop")) as stopped:
        page.get_by_role("button", name="Stop").click()
    assert stopped.value.ok
    page.locator("main").get_by_text("stopped").first.wait_for()
    assert client.get(f"/v1/deployments/{made['id']}").json()["desired"] == "stopped"
    page.reload()
    page.get_by_role("heading", name="behind", level=1).wait_for()
    for name, path in (("Artifacts", "artifacts"), ("Usage", "usage"), ("Keys", "keys")):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        page.wait_for_url(f"{base}/{path}")
        page.get_by_role("heading", level=1).wait_for()
    with page.expect_download() as saved:
        page.goto(f"{base}/usage")
        page.get_by_role("button", name="CSV by key").click()
    assert saved.value.suggested_filename.startswith("usage-by-key-")


def test_cookie_is_of_the_path_alone(page: "Page") -> None:
    (cookie,) = page.context.cookies()
    assert cookie["path"] == f"{PREFIX}/"
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").wait_for()
    assert page.context.cookies() == []


def test_link_signs_in(
    opened_at: Opener, own: tuple[PathProxy, Server], client: httpx.Client
) -> None:
    url = client.post("/v1/console/links").raise_for_status().json()["url"]
    assert url.startswith(f"{own[0].base_url}/console/#link=")
    page = opened_at(url)
    page.get_by_role("heading", name="Overview").wait_for()
    assert own[0].strangers == []
