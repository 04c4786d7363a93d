"""Sign-in, session lifetime, and the display of hostile names."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from tests.cli.support import Cli
from tests.demo.console.conftest import Opener, sign_in
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]
HOSTILE = '<img src=x onerror="document.title=1">'
TURNED = "safe\u202egnp.exe"


def cookie_of(page: "Page") -> dict[str, Any]:
    [cookie] = page.context.cookies()
    return dict(cookie)


def test_wrong_keys_are_told(opened: Opener) -> None:
    page = opened()
    page.get_by_label("API key").fill("sk-0000000000000000-" + "x" * 43)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("alert").wait_for()
    assert "key" in page.get_by_role("alert").inner_text().lower()
    assert page.context.cookies() == []


def test_in_and_out(console: "Page", at: At) -> None:
    cookie = cookie_of(console)
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    console.get_by_role("link", name="tiny-ner", exact=True).wait_for()
    # The browser does not store the key itself.
    storage = console.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "sk-" not in storage
    console.reload()
    console.get_by_role("link", name="tiny-ner", exact=True).wait_for()
    console.get_by_role("button", name="Sign out").click()
    console.get_by_label("API key").wait_for()
    console.goto(at("keys"))
    console.get_by_label("API key").wait_for()
    # The session has ended, even for a kept cookie.
    base = at("").removesuffix("/console/")
    kept_cookie = {"cookie": f"{cookie['name']}={cookie['value']}"}
    assert httpx.get(f"{base}/v1/deployments", headers=kept_cookie).status_code == 401


def test_a_link_signs_in_once(opened: Opener, demo: Server, state: Any) -> None:
    result = Cli(demo.base_url, state["account_key"]).run("open", "--no-browser")
    url = result.stdout.strip()
    page = opened()
    page.goto("about:blank")
    page.goto(url)
    page.get_by_role("link", name="tiny-ner", exact=True).wait_for()
    assert "link=" not in page.url
    other = opened()
    other.goto("about:blank")
    other.goto(url)
    other.get_by_role("alert").wait_for()
    assert "This sign-in link does not work" in other.get_by_role("alert").inner_text()


def test_a_revoked_key_ends_other_tabs(opened: Opener, demo: Server, at: At) -> None:
    client = demo.account("revoking")
    made = client.post("/v1/api-keys", json={"scope": "account", "name": "lost"}).json()
    lost = sign_in(opened(), made["key"])
    lost.goto(at("artifacts"))
    lost.get_by_role("heading", name="Artifacts", exact=True).wait_for()
    mine = client.post("/v1/api-keys", json={"scope": "account"}).json()
    owner = sign_in(opened(), mine["key"])
    owner.goto(at("keys"))
    owner.get_by_role("button", name=f"Revoke {made['public_id']}").click()
    owner.get_by_role("button", name="Revoke key").click()
    # The other tab changes without any action in it.
    lost.get_by_label("API key").wait_for()
    assert "Your session has ended" in lost.get_by_role("alert").inner_text()
    assert owner.get_by_role("heading", name="Keys", exact=True).is_visible()


def test_names_are_text(opened: Opener, demo: Server, at: At) -> None:
    client = demo.account(HOSTILE)
    key = client.post("/v1/api-keys", json={"scope": "account", "name": HOSTILE}).json()["key"]
    for name in (HOSTILE, TURNED):
        client.post("/v1/model-artifacts", json={"display_name": name}).raise_for_status()
    page = sign_in(opened(), key)
    page.goto(at("artifacts"))
    page.get_by_role("link", name=HOSTILE).wait_for()
    assert page.get_by_role("link", name=re.compile("^safe")).inner_text() == "safe\ufffdgnp.exe"
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.goto(at("keys"))
    page.get_by_text(HOSTILE).wait_for()
    assert page.locator("main img").count() == 0
    assert page.title() == "Keys · Stoker"


def test_a_server_that_is_away_is_told_of(console: "Page") -> None:
    console.get_by_role("link", name="tiny-ner", exact=True).wait_for()
    console.context.set_offline(True)
    console.get_by_text("The server is not responding.").wait_for()
    console.context.set_offline(False)
    console.get_by_text("The server is not responding.").wait_for(state="detached")
    assert console.get_by_role("link", name="tiny-ner", exact=True).is_visible()


def test_the_palette_goes_anywhere(console: "Page", state: Any) -> None:
    console.get_by_role("link", name="tiny-ner", exact=True).wait_for()
    console.keyboard.press("Control+k")
    console.keyboard.type("try tiny-ner")
    console.keyboard.press("Enter")
    console.wait_for_url(f"**/deployments/{state['deployments']['tiny-ner']['id']}/try")
    console.get_by_role("button", name="Classify", exact=True).wait_for()


def test_themes_stay(console: "Page") -> None:
    def ground() -> str:
        return console.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")

    console.emulate_media(color_scheme="dark")
    dark = ground()
    console.emulate_media(color_scheme="light")
    light = ground()
    assert dark != light
    console.get_by_role("button", name="Theme: system").click()
    console.get_by_role("button", name="Theme: light").click()
    assert ground() == dark
    console.reload()
    console.get_by_role("button", name="Theme: dark").wait_for()
    assert ground() == dark
