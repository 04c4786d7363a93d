"""Batches and uploaded files in the console, with real models of the demo."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.artifacts.support import eventually
from tests.demo.console.conftest import Opener
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

At = Callable[[str], str]
PHONE = {"width": 390, "height": 800}
SENTIMENT, CHAT = "/v1/classifications/text", "/v1/chat/completions"
TEXTS = ["A wonderful day!", "The food was cold and bad.", "Nobody came back."]


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def feelings(path: Path) -> Path:
    lines = [
        line(f"t{n}", SENTIMENT, model="tiny-sentiment", inputs=t) for n, t in enumerate(TEXTS)
    ]
    return jsonl(path, *lines, line("wrong", SENTIMENT, model="tiny-sentiment", inputs=7))


@pytest.fixture
def client(demo: Server, state: Any) -> Iterator[httpx.Client]:
    with demo.client(state["account_key"]) as client:
        yield client


def new_batch(page: "Page", at: At, file: Path) -> "Locator":
    """Opens the form and chooses a file."""
    page.goto(at("batches"))
    page.get_by_role("button", name="New batch").first.click()
    dialog = page.get_by_role("dialog", name="New batch")
    dialog.locator("input[type=file]").set_input_files(file)
    return dialog


def create(page: "Page", at: At, file: Path) -> str:
    """Creates a batch by the form. Returns its id."""
    new_batch(page, at, file).get_by_role("button", name="Create").click()
    page.wait_for_url("**/batches/batch_*")
    return page.url.rsplit("/", 1)[1]


def downloaded(page: "Page", button: str) -> dict[str, Any]:
    with page.expect_download() as saved:
        page.get_by_role("button", name=button).click()
    lines = [json.loads(item) for item in Path(saved.value.path()).read_text().splitlines()]
    return {item["custom_id"]: item["response"] for item in lines}


def test_a_batch_is_created_and_its_answers_are_saved(
    console: "Page", at: At, client: httpx.Client, tmp_path: Path
) -> None:
    dialog = new_batch(console, at, feelings(tmp_path / "feelings.jsonl"))
    dialog.get_by_text("4 requests.").wait_for()
    assert dialog.get_by_label("Model", exact=True).input_value() == "tiny-sentiment"
    # The model's endpoints are loaded after the file is checked.
    endpoint = dialog.get_by_label("Endpoint")
    assert eventually(lambda: endpoint.input_value() == SENTIMENT)
    dialog.get_by_role("button", name="Create").click()
    console.get_by_text("completed", exact=True).wait_for()
    console.get_by_text("3 of 4, 1 failed").wait_for()
    answers = downloaded(console, "Download answers")
    for number, text in enumerate(TEXTS):
        body = {"model": "tiny-sentiment", "inputs": text}
        single = client.post(SENTIMENT, json=body).raise_for_status().json()
        given = answers[f"t{number}"]["body"]
        assert [label["label"] for label in given] == [label["label"] for label in single]
        scores = [label["score"] for label in single]
        assert [label["score"] for label in given] == pytest.approx(scores, abs=1e-5)
    assert downloaded(console, "Download failed lines")["wrong"]["status_code"] == 400


def test_wrong_lines_are_shown_before_the_upload(
    console: "Page", at: At, client: httpx.Client, tmp_path: Path
) -> None:
    before = client.get("/v1/files", params={"purpose": "batch"}).json()["data"]
    file = feelings(tmp_path / "wrong.jsonl")
    file.write_text(file.read_text() + "{\n")
    dialog = new_batch(console, at, file)
    dialog.get_by_text("Line 5: The line is not valid JSON.").wait_for()
    assert dialog.get_by_role("button", name="Create").is_disabled()
    dialog.locator("input[type=file]").set_input_files(feelings(tmp_path / "right.jsonl"))
    dialog.get_by_text("4 requests.").wait_for()
    dialog.get_by_label("Model", exact=True).select_option("tiny-ner")
    dialog.get_by_text("The lines name the model 'tiny-sentiment'.").wait_for()
    assert dialog.get_by_role("button", name="Create").is_disabled()
    assert client.get("/v1/files", params={"purpose": "batch"}).json()["data"] == before


def test_errors_of_the_server_have_line_numbers(console: "Page", at: At, tmp_path: Path) -> None:
    file = jsonl(
        tmp_path / "large.jsonl",
        line("a", SENTIMENT, model="tiny-sentiment", inputs="good"),
        # More than a request and more than a part may have.
        *(
            line(f"long-{n}", SENTIMENT, model="tiny-sentiment", inputs="x" * (5 << 20))
            for n in range(2)
        ),
    )
    create(console, at, file)
    row = console.get_by_role("region", name="Errors of the file").locator("tbody tr").first
    row.wait_for()
    assert row.locator("td").all_inner_texts()[:2] == ["2", "The line is larger than 4 MiB."]


def test_a_batch_is_cancelled(
    console: "Page", at: At, client: httpx.Client, tmp_path: Path
) -> None:
    body = {
        "model": "tiny-chat",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 200,
        "min_tokens": 200,
    }
    batch = create(
        console,
        at,
        jsonl(tmp_path / "long.jsonl", *(line(str(n), CHAT, **body) for n in range(900))),
    )
    # The progress arrives with events.
    console.wait_for_function(
        "() => document.querySelector('[role=progressbar]')?.getAttribute('aria-valuenow') > 0"
    )
    console.get_by_role("button", name="Cancel batch").click()
    console.get_by_role("dialog").get_by_role("button", name="Cancel batch").click()
    console.get_by_text("cancelled", exact=True).wait_for()
    assert eventually(lambda: client.get(f"/v1/batches/{batch}").json()["status"] == "cancelled")
    assert console.get_by_role("button", name="Cancel batch").count() == 0
    console.get_by_role("button", name="Download answers").wait_for()


def test_the_list_is_live_and_fits_a_phone(
    opened: Opener, at: At, client: httpx.Client, state: Any, tmp_path: Path
) -> None:
    page = sign_in_on_a_phone(opened, state["account_key"])
    page.goto(at("batches"))
    page.get_by_role("heading", name="Batches").wait_for()
    with feelings(tmp_path / "feelings.jsonl").open("rb") as file:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("feelings.jsonl", file)}}
        stored = client.post("/v1/files", **form).raise_for_status().json()
    made = {"input_file_id": stored["id"], "endpoint": SENTIMENT, "completion_window": "24h"}
    batch = client.post("/v1/batches", json=made).raise_for_status().json()["id"]
    row = page.get_by_role("region", name="Batches").locator("tr", has_text=f"…{batch[-6:]}")
    row.get_by_text("completed", exact=True).wait_for()
    row.get_by_text("3 of 4, 1 failed").wait_for()
    page.get_by_label("Sort batches").select_option("failed")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    row.get_by_role("link").click()
    page.get_by_role("button", name="Download answers").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def sign_in_on_a_phone(opened: Opener, key: str) -> "Page":
    page = opened(viewport=PHONE)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.locator("#main").wait_for()
    return page


@pytest.mark.parametrize("size", [9, 20 << 20])
def test_a_file_is_uploaded(
    console: "Page", at: At, client: httpx.Client, tmp_path: Path, size: int
) -> None:
    path = tmp_path / f"notes-{size}.txt"
    content = bytes(n % 251 for n in range(4096)) * (size // 4096 + 1)
    path.write_bytes(content[:size])
    console.goto(at("files"))
    console.get_by_role("button", name="Upload file").click()
    dialog = console.get_by_role("dialog", name="Upload file")
    dialog.locator("input[type=file]").set_input_files(path)
    dialog.get_by_role("button", name="Upload").click()
    tile = console.locator(".tile", has_text=path.name)
    tile.get_by_text("never expires").wait_for()
    with console.expect_download() as saved:
        tile.get_by_role("button", name=f"Download {path.name}").click()
    assert saved.value.suggested_filename == path.name
    assert Path(saved.value.path()).read_bytes() == path.read_bytes()
    tile.get_by_role("button", name=f"Delete {path.name}").click()
    console.get_by_role("button", name="Delete file").click()
    tile.wait_for(state="detached")
    names = [file["filename"] for file in client.get("/v1/files").json()["data"]]
    assert path.name not in names
