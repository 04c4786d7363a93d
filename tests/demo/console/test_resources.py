"""Keys, files and videos in the console, and the machine page of operators."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.artifacts.support import eventually
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]
PHONE = {"width": 390, "height": 800}


def test_a_key_is_made_for_searched_deployments(
    console: "Page", at: At, demo: Server, state: Any
) -> None:
    console.goto(at("keys"))
    console.get_by_role("button", name="New key").click()
    dialog = console.get_by_role("dialog")
    dialog.get_by_label("Name").fill("two models")
    create = dialog.get_by_role("button", name="Create")
    assert create.is_disabled()
    search = dialog.get_by_label("Search deployments")
    names = ["tiny-ner", "tiny-qa"]
    for name in names:
        search.fill(name)
        dialog.get_by_label(name, exact=True).check()
    # A selected deployment stays in the list, whatever the search.
    assert dialog.get_by_label("tiny-ner", exact=True).is_checked()
    assert dialog.get_by_label("tiny-draw", exact=True).count() == 0
    dialog.get_by_text("2 selected.").wait_for()
    create.click()
    console.get_by_role("heading", name="Save your key").wait_for()
    with demo.client(state["account_key"]) as client:
        keys = client.get("/v1/api-keys").json()["data"]
        made = next(key for key in keys if key["name"] == "two models")
        wanted = {state["deployments"][name]["id"] for name in names}
        assert set(made["deployment_ids"]) == wanted
        client.delete(f"/v1/api-keys/{made['id']}").raise_for_status()


def test_keys_are_revoked_on_a_phone(opened: Opener, demo: Server, at: At) -> None:
    client = demo.account("phone")
    made = client.post("/v1/api-keys", json={"scope": "account", "name": "old"}).json()
    page = opened(viewport=PHONE)
    page.get_by_label("API key").fill(account_key(client))
    page.get_by_role("button", name="Sign in").click()
    page.locator("#main").wait_for()
    page.goto(at("keys"))
    revoke = page.get_by_role("button", name=f"Revoke {made['public_id']}")
    box = revoke.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    revoke.click()
    page.get_by_role("heading", name="Revoke old?").wait_for()
    page.get_by_role("button", name="Revoke key").click()
    page.get_by_text("old", exact=True).wait_for(state="detached")
    ids = [key["id"] for key in client.get("/v1/api-keys").json()["data"]]
    assert made["id"] not in ids


def size_of(page: "Page", name: str) -> list[int]:
    """Returns the size of a picture in its own pixels, once it is loaded."""
    picture = page.get_by_role("img", name=name)
    picture.wait_for()
    page.wait_for_function("one => one.naturalWidth > 0", arg=picture.element_handle())
    return picture.evaluate("one => [one.naturalWidth, one.naturalHeight]")


def test_files_are_shown_as_pictures(console: "Page", at: At, demo: Server, state: Any) -> None:
    with demo.client(state["account_key"]) as client:
        body = {"model": "tiny-draw", "prompt": "a red circle", "response_format": "url"}
        client.post("/v1/images/generations", json=body).raise_for_status()
        file = client.get("/v1/files").json()["data"][0]
        name = f"Image …{file['id'][-6:]}"
        console.goto(at("files"))
        assert size_of(console, f"View {name}") == [64, 64]
        console.get_by_role("button", name=f"View {name}").click()
        dialog = console.get_by_role("dialog", name=name)
        dialog.get_by_text(file["filename"]).wait_for()
        dialog.locator("img").wait_for()
        dialog.get_by_role("button", name="Close").click()
        console.get_by_label("Filter files").select_option("video")
        console.get_by_role("img", name=f"View {name}").wait_for(state="detached")
        console.get_by_label("Filter files").select_option("image")
        with console.expect_download() as saved:
            console.get_by_role("button", name=f"Download {name}").click()
        assert saved.value.suggested_filename == file["filename"]
        console.get_by_role("button", name=f"Delete {name}").click()
        console.get_by_role("heading", name=f"Delete {name}?").wait_for()
        console.get_by_role("button", name="Delete file").click()
        console.get_by_role("img", name=f"View {name}").wait_for(state="detached")
        assert client.get(f"/v1/files/{file['id']}").status_code == 404


def test_videos_have_thumbnails(console: "Page", at: At, demo: Server, state: Any) -> None:
    with demo.client(state["account_key"]) as client:
        body = {"model": "random-video-maker", "prompt": "a thumbnail"}
        path = f"/v1/videos/{client.post('/v1/videos', json=body).json()['id']}"
        assert eventually(lambda: client.get(path).json()["status"] == "completed", timeout=120)
        video = client.get(path).json()
        console.goto(at("videos"))
        shown = size_of(console, "Play a thumbnail")
        assert shown[0] / shown[1] == ratio_of(video["size"])
        console.get_by_role("button", name="Play a thumbnail").click()
        player = console.get_by_role("dialog").locator("video")
        player.wait_for()
        console.wait_for_function("one => one.videoWidth > 0", arg=player.element_handle())
        size = player.evaluate("one => `${one.videoWidth}x${one.videoHeight}`")
        assert size == video["size"]
        console.get_by_role("dialog").get_by_role("button", name="Close").click()
        console.get_by_role("button", name=f"Delete {video['id']}").click()
        console.get_by_role("heading", name="Delete a thumbnail?").wait_for()
        console.get_by_role("button", name="Delete video", exact=True).click()
        console.get_by_text("a thumbnail", exact=True).wait_for(state="detached")
        assert client.get(path).status_code == 404


def ratio_of(size: str) -> float:
    width, height = map(int, size.split("x"))
    return width / height


def test_operators_see_names_of_accounts(opened: Opener, demo: Server, at: At, state: Any) -> None:
    with demo.client(state["account_key"]) as client:
        body = {"model": "tiny-sentiment", "inputs": "A wonderful day!"}
        client.post("/v1/classifications/text", json=body).raise_for_status()
        account = client.get("/v1/credits").json()["account_id"]
    with demo.client(demo.operator_key) as operator:
        accounts = operator.get("/v1/accounts", params={"limit": 100}).json()["data"]
    name = next(one["name"] for one in accounts if one["id"] == account)
    page = sign_in(opened(), demo.operator_key)
    page.goto(at("machine"))
    row = page.get_by_role("region", name="Replicas").locator("tr", has_text="tiny-sentiment")
    row.first.get_by_text(name, exact=True).wait_for()
    assert row.first.locator(f"[title={account}]").inner_text() == name

    page.goto(at("accounts"))
    page.get_by_role("button", name="New account").click()
    page.keyboard.type("arrival")
    page.get_by_role("button", name="Create", exact=True).click()
    choice = page.locator(".account-choice select")
    choice.locator("option", has_text="arrival").wait_for(state="attached")
