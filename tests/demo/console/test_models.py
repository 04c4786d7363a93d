"""A user gets from a folder to an answer without a manual."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stoker.demo.setup import MODELS
from tests.demo.console.conftest import Opener, sign_in
from tests.demo.sentences import NER
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

At = Callable[[str], str]


@pytest.fixture
def mine(opened: Opener, demo: Server) -> "Page":
    """Opens the console, signed in to a new account."""
    client = demo.account("newcomer")
    key = client.post("/v1/api-keys", json={"scope": "account"}).raise_for_status().json()["key"]
    return sign_in(opened(), key)


def drop(page: "Page", selector: str, path: Path) -> None:
    """Drops a local folder onto an element, as a file manager does."""
    box = page.locator(selector).bounding_box()
    assert box
    devtools = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        devtools.send(
            "Input.dispatchDragEvent",
            {
                "type": kind,
                "x": box["x"] + box["width"] / 2,
                "y": box["y"] + 10,
                "data": {"items": [], "files": [str(path)], "dragOperationsMask": 1},
            },
        )


def test_dropped_deployed_and_called(mine: "Page", at: At, tmp_path: Path) -> None:
    folder = tmp_path / "Names & Places"
    shutil.copytree(MODELS / "tiny-ner", folder)
    (folder / "README.md").write_text(
        "---\ntags: [x]\n---\n# A card\n\nIt **finds** names."
        "\n\n<script>document.title='x'</script>\n\n"
        "[evil](javascript:alert(1)) [good](https://example.org/)\n"
    )
    (folder / "training_args.bin").write_bytes(b"\x80\x02pickled")
    mine.get_by_role("heading", name="Deploy your first model").wait_for()
    mine.goto(at("artifacts"))
    mine.locator(".drop").wait_for()
    drop(mine, ".drop", folder)
    mine.get_by_role("heading", name="Names & Places").wait_for()
    mine.get_by_role("heading", name="Deploy", exact=True).wait_for()
    assert "for token-classification" in mine.locator("main").inner_text()
    mine.get_by_label("Model id").fill("names")
    mine.get_by_role("button", name="Deploy", exact=True).click()
    mine.wait_for_url("**/try")
    text, entities = NER[0]
    mine.get_by_label("Text", exact=True).fill(text)
    mine.get_by_role("button", name="Classify", exact=True).click()
    mine.locator("mark").first.wait_for()
    words = mine.locator("mark").evaluate_all("all => all.map(one => one.firstChild.textContent)")
    assert words == [word for word, _ in entities]
    mine.get_by_role("link", name="API", exact=True).click()
    assert '"model":"names"' in mine.get_by_label("API call with curl").first.inner_text()


def test_what_is_no_model_says_what_to_do(mine: "Page", at: At, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"architectures": ["BertForMaskedLM"], "model_type": "bert"}'
    )
    mine.goto(at("artifacts"))
    mine.locator("input[type=file][multiple]").first.set_input_files(folder)
    mine.get_by_role("heading", name="broken").wait_for()
    mine.locator(".error-note").wait_for()
    assert "safetensors" in mine.locator(".error-note").inner_text()


def test_an_upload_goes_on_after_a_reload(mine: "Page", at: At, tmp_path: Path) -> None:
    folder = tmp_path / "resumed"
    shutil.copytree(MODELS / "tiny-ner", folder)
    sent: list[str] = []
    arrived: list[str] = []
    mine.on("request", lambda item: item.method == "PUT" and sent.append(item.url))
    mine.on("requestfinished", lambda item: item.method == "PUT" and arrived.append(item.url))
    # The weights never arrive.
    mine.route("**/files/model.safetensors/parts/*", lambda route: route.abort())
    mine.goto(at("artifacts"))
    mine.locator("input[type=file][multiple]").first.set_input_files(folder)
    mine.get_by_role("heading", name="resumed").wait_for()
    mine.wait_for_function("() => document.querySelector('[role=progressbar]')")
    while len({*arrived}) < len([*folder.iterdir()]) - 1:
        mine.wait_for_timeout(50)
    mine.on("dialog", lambda item: item.accept())
    mine.reload()
    mine.get_by_text("The upload stopped.").wait_for()
    mine.unroute_all()
    sent.clear()
    mine.locator("main input[type=file]").set_input_files(folder)
    mine.get_by_role("heading", name="Deploy", exact=True).wait_for()
    assert [item.rsplit("/", 3)[1:2] for item in sent] == [["model.safetensors"]]


def test_settings_say_what_will_happen(console: "Page", at: At, state: Any) -> None:
    console.goto(at(f"deployments/{state['deployments']['tiny-sentiment']['id']}/settings"))
    console.get_by_label("Max queue").fill("17")
    assert "When 17 requests" in console.locator(".warn-note").inner_text()
    console.get_by_role("button", name="Save", exact=True).click()
    console.get_by_text("Saved.").wait_for()
    console.reload()
    console.get_by_label("Max queue").wait_for()
    assert console.get_by_label("Max queue").input_value() == "17"
