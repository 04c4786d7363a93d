"""Playgrounds draw each kind of answer, with the demo's models."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests.demo.console.conftest import MEDIA
from tests.demo.sentences import FILL, NER, SENTIMENT

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

At = Callable[[str], str]


@pytest.fixture
def ask(console: "Page", at: At) -> Callable[..., "Locator"]:
    """Returns a function that calls a model in its playground and returns the answer once it is
    drawn.
    """

    def asked(model: str, *, file: str = "", endpoint: str = "", **fields: str) -> "Locator":
        console.goto(at(f"try?model={model}"))
        console.locator("form [type=submit]").wait_for()
        if endpoint:
            console.get_by_role("button", name=endpoint).click()
        if file:
            console.locator("input[type=file]").set_input_files(MEDIA / file)
        console.get_by_text("Options", exact=True).first.click()
        for name, value in fields.items():
            field = console.locator(f"[name={name}]")
            if field.evaluate("element => element.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        console.locator("form [type=submit]").click()
        console.get_by_role("heading", name="API call").wait_for()
        return console.locator(
            ".card", has=console.get_by_role("heading", name="Output", exact=True)
        )

    return asked


Ask = Callable[..., "Locator"]


def top(answer: "Locator") -> str | None:
    return answer.locator(".bars li").first.get_attribute("data-label")


def colours(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the masks of a picture's red and blue pixels, as bool arrays of (height, width)."""
    with Image.open(MEDIA / name) as image:
        red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(int), -1, 0)
    return (red > 150) & (green < 90) & (blue < 90), (blue > 150) & (red < 90)


@pytest.mark.parametrize(("text", "entities"), NER[:4])
def test_entities_are_marked_where_they_stand(ask: Ask, text: str, entities: Any) -> None:
    marks = ask("tiny-ner", inputs=text).locator("mark")
    marked = marks.evaluate_all(
        "all => all.map(one => [one.firstChild.textContent, one.lastChild.textContent])"
    )
    assert [tuple(pair) for pair in marked] == [tuple(pair) for pair in entities]


def test_an_answer_is_marked_in_its_context(ask: Ask) -> None:
    answer = ask("tiny-qa", question="Where does Anna work?", context="🦊 Anna works in Berlin.")
    assert answer.locator("mark").evaluate("one => one.firstChild.textContent") == "Berlin"


@pytest.mark.parametrize(("text", "label"), SENTIMENT[:2])
def test_labels_are_bars(ask: Ask, text: str, label: str) -> None:
    answer = ask("tiny-sentiment", inputs=text)
    assert top(answer) == label
    first, second = answer.locator(".bar-fill").evaluate_all("all => all.map(o => o.offsetWidth)")
    assert first > second


def test_words_are_filled_in(ask: Ask) -> None:
    text, word = FILL[0]
    assert top(ask("tiny-fill-mask", inputs=text)) == word


def test_labels_of_ones_own(ask: Ask) -> None:
    wish = {
        "inputs": "The striker scored",
        "candidate_labels": "football\ncooking",
    }
    assert top(ask("tiny-nli", **wish)) == "football"


@pytest.mark.parametrize(
    ("model", "file", "fields", "label"),
    [
        ("tiny-digits", "seven.png", {}, "7"),
        (
            "tiny-clip",
            "circle.png",
            {"candidate_labels": "a red circle\na blue square"},
            "a red circle",
        ),
        ("tiny-vqa", "scene.png", {"question": "What colour is the circle?"}, "red"),
        ("tiny-sounds", "siren.wav", {}, "siren"),
        ("tiny-video", "moving.mp4", {}, "moving left"),
    ],
)
def test_media(ask: Ask, model: str, file: str, fields: dict[str, str], label: str) -> None:
    assert top(ask(model, file=file, **fields)) == label


def test_boxes_are_where_the_shapes_are(ask: Ask) -> None:
    answer = ask("tiny-detector", file="scene.png")
    red, blue = colours("scene.png")
    for label, shape in (("red", red), ("blue", blue)):
        box = answer.locator(f"rect[data-label={label}]").first
        left, upper, width, height = (
            float(box.get_attribute(name) or "nan") for name in ("x", "y", "width", "height")
        )
        drawn = np.zeros_like(shape)
        drawn[round(upper) : round(upper + height), round(left) : round(left + width)] = True
        rows, columns = np.where(shape)
        around = np.zeros_like(shape)
        around[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        assert (drawn & around).sum() / (drawn | around).sum() > 0.6, label
    # The drawing covers the picture pixel by pixel.
    picture, over = answer.locator(".picture img"), answer.locator("svg.over")
    assert picture.bounding_box() == over.bounding_box()
    # Each box has its label at its upper left corner, in the colour of its class.
    for place, label in enumerate(answer.locator(".box-label").all()):
        box = answer.locator("rect.box").nth(place)
        assert label.inner_text() == box.get_attribute("data-label")
        corners = [one.bounding_box() or {} for one in (label, box)]
        assert corners[0]["x"] == pytest.approx(corners[1]["x"], abs=3)
        assert corners[0]["y"] == pytest.approx(corners[1]["y"], abs=3)
    shades = answer.locator("rect.box").evaluate_all(
        "all => all.map(one => [one.dataset.label, one.className.baseVal])"
    )
    assert len({shade for _, shade in shades}) == len({label for label, _ in shades}) == 2
    assert len({tuple(pair) for pair in shades}) == 2


def test_masks_are_where_the_shapes_are(ask: Ask) -> None:
    answer = ask("tiny-segmenter", file="scene.png")
    red, blue = colours("scene.png")
    canvases = answer.locator("canvas.over")
    canvases.nth(2).wait_for(state="attached")
    answer.locator(".found bdi").first.wait_for()
    labels = [text.strip() for text in answer.locator(".found bdi").all_inner_texts()]
    for label, shape in (("red", red), ("blue", blue)):
        canvas = canvases.nth(labels.index(label))
        # An empty canvas is 300 pixels wide.
        drawn = "one => one.width !== 300"
        canvas.page.wait_for_function(drawn, arg=canvas.element_handle())
        alpha = np.array(
            canvas.evaluate(
                "one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
                ".filter((_, at) => at % 4 === 3)"
            )
        ).reshape(shape.shape)
        covered = alpha > 0
        assert (covered & shape).sum() / (covered | shape).sum() > 0.7, label


def test_depth_is_drawn(ask: Ask) -> None:
    canvas = ask("random-depth", file="circle.png").locator("canvas")
    canvas.page.wait_for_function(
        "one => new Set(new Uint32Array(one.getContext('2d')"
        ".getImageData(0, 0, one.width, one.height).data.buffer)).size > 8",
        arg=canvas.element_handle(),
    )


def test_what_was_said_follows_the_player(ask: Ask) -> None:
    answer = ask("tiny-transcriber", file="seven-three-one.wav")
    answer.get_by_text("seven three one").first.wait_for()
    player = answer.locator("audio")
    player.page.wait_for_function("one => one.duration > 0.6", arg=player.element_handle())
    player.evaluate("one => { one.currentTime = 0.5; }")
    answer.locator(".captions li.now").wait_for()


def test_speech_can_be_played(ask: Ask) -> None:
    player = ask("random-speech", input="The train leaves at nine.").locator("audio")
    player.page.wait_for_function("one => one.duration > 0.1", arg=player.element_handle())


def test_speech_is_downloaded(ask: Ask) -> None:
    answer = ask("random-speech", input="The train leaves at nine.")
    with answer.page.expect_download() as started:
        answer.get_by_role("link", name="Download").click()
    assert started.value.suggested_filename == "speech.mp3"
    content = Path(started.value.path()).read_bytes()
    # An MP3 begins with a tag or with a frame.
    assert content.startswith(b"ID3") or content[0] == 0xFF


def test_pictures_are_shown(ask: Ask) -> None:
    answer = ask("tiny-draw", prompt="a red circle", num_inference_steps="20", seed="1")
    source = answer.locator(".gallery img").get_attribute("src") or ""
    sent = answer.page.evaluate(
        "async address => [...new Uint8Array(await (await fetch(address)).arrayBuffer())]"
        if source.startswith("blob:")
        else "address => [...atob(address.split(',')[1])].map(one => one.charCodeAt(0))",
        source,
    )
    with Image.open(io.BytesIO(bytes(sent))) as image:
        red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(int), -1, 0)
    middle = np.s_[24:40, 24:40]
    assert red[middle].mean() > green[middle].mean() + 40
    assert red[middle].mean() > blue[middle].mean() + 40


FRAMES_OF_THE_PAGE = """() => new Promise((resolve) => {
    const request = window.requestAnimationFrame.bind(window);
    let requested = 0;
    window.requestAnimationFrame = (act) => { requested += 1; return request(act); };
    let left = 20;
    const next = () => { left -= 1; if (left > 0) request(next); else resolve(requested); };
    request(next);
})"""
"""Counts the animation frames that the page requests within 20 frames."""


def test_an_image_is_drawn_once(ask: Ask) -> None:
    answer = ask("tiny-draw", prompt="a red circle", num_inference_steps="2", seed="1")
    answer.locator(".gallery img").wait_for()
    assert answer.page.evaluate(FRAMES_OF_THE_PAGE) <= 3


def test_an_image_without_a_prompt(ask: Ask) -> None:
    answer = ask("random-image-maker", num_inference_steps="1", seed="1")
    image = answer.locator(".gallery img")
    image.wait_for()
    assert image.evaluate("one => one.naturalWidth") > 8


def test_a_ranking_reorders(ask: Ask) -> None:
    documents = "The train is late.\nTo bake bread you need flour"
    answer = ask("tiny-reranker", query="How do I bake bread?", documents=documents)
    assert answer.locator(".ranked li").first.inner_text().startswith("1")
    assert "flour" in answer.locator(".ranked li").first.inner_text()
    assert "↑" in answer.locator(".ranked li").first.inner_text()


def test_vectors_have_neighbours(ask: Ask) -> None:
    texts = "How do I bake bread?\nWhat is the way to bake bread?\nThe train is late."
    answer = ask("tiny-encoder", endpoint="Embeddings", input=texts)
    answer.locator(".bars").first.wait_for()
    nearest = answer.get_by_role("region", name="How do I bake bread?").locator(".bars li").first
    assert nearest.get_attribute("data-label") == "What is the way to bake bread?"


def test_a_table_is_shown(ask: Ask) -> None:
    table = "City,Trees\nParis,1200\nBerlin,900"
    answer = ask("random-table-qa", query="How many trees are in Berlin?", table=table)
    answer.locator("tbody td").first.wait_for()
    assert answer.locator("tbody td").all_inner_texts() == ["Paris", "1200", "Berlin", "900"]


def test_a_video_is_made(ask: Ask) -> None:
    player = ask("random-video-maker", prompt="a boat", num_inference_steps="1").locator("video")
    player.wait_for()
    player.page.wait_for_function("one => one.duration > 0", arg=player.element_handle())


def test_the_call_is_the_one_that_was_made(ask: Ask, state: Any) -> None:
    text = "It's Berlin's."
    answer = ask("tiny-ner", inputs=text)
    call = answer.page.get_by_label("API call with curl").inner_text()
    body = json.loads(call.rsplit("-d '", 1)[1].removesuffix("'").replace("'\\''", "'"))
    assert body == {"model": "tiny-ner", "inputs": text, "aggregation_strategy": "simple"}


def test_what_is_wrong_is_told_with_the_request(ask: Ask, console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-fill-mask"))
    console.get_by_label("Text", exact=True).fill("No mask here.")
    console.get_by_role("button", name="Fill in", exact=True).click()
    note = console.get_by_role("alert")
    note.wait_for()
    assert "[MASK]" in note.inner_text()
    assert "req_" in note.inner_text()


@pytest.mark.parametrize(
    ("model", "labels", "button"),
    [
        ("tiny-sentiment", ["Text"], "Classify"),
        ("tiny-transcriber", ["Recording", "Prompt (optional)"], "Transcribe"),
        ("tiny-clip", ["Image", "Labels"], "Classify"),
        ("tiny-reranker", ["Query", "Documents"], "Rank"),
        ("tiny-summarizer", ["Text"], "Summarize"),
        ("tiny-draw", ["Prompt", "Negative prompt (optional)"], "Generate"),
        ("random-speech", ["Text", "Voice (optional)"], "Generate"),
        ("tiny-vqa", ["Image", "Question"], "Get answer"),
        ("random-image-maker", [], "Generate"),
        ("random-video-maker", ["Prompt", "Negative prompt (optional)"], "Generate"),
        ("random-photo-mover", ["First image", "Prompt", "Negative prompt"], "Generate"),
    ],
)
def test_forms_are_named_for_the_task(
    console: "Page", at: At, model: str, labels: list[str], button: str
) -> None:
    console.goto(at(f"try?model={model}"))
    console.get_by_role("button", name=button, exact=True).wait_for()
    inputs = console.locator("form > .field > label")
    assert [label.removesuffix(" (optional)") for label in inputs.all_inner_texts()] == [
        label.removesuffix(" (optional)") for label in labels
    ]
    # Descriptions of the API, which also covers lists and encodings, are no help in a form.
    assert not re.search(r"list of|base64|data URI", console.locator("form").inner_text())


def test_an_error_is_shown_at_its_field(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-ner"))
    console.get_by_text("Options", exact=True).click()
    stride = console.locator("[name=stride]")
    stride.fill("-5")
    console.get_by_text("Options", exact=True).click()
    console.get_by_role("button", name="Classify", exact=True).click()
    note = console.locator(".field", has=stride).get_by_role("alert")
    note.wait_for()
    assert "greater than or equal to 0" in note.inner_text()
    assert stride.evaluate("one => one === document.activeElement && one.ariaInvalid === 'true'")
    assert console.get_by_role("alert").count() == 1
    stride.fill("0")
    console.get_by_role("button", name="Classify", exact=True).click()
    console.locator("mark").first.wait_for()
    assert console.get_by_role("alert").count() == 0


def test_a_missing_file_is_named(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-transcriber"))
    console.get_by_role("button", name="Transcribe", exact=True).click()
    assert console.get_by_role("alert").inner_text().strip() == "Choose a recording."


def test_a_model_is_found_by_typing(console: "Page", at: At) -> None:
    console.goto(at("try?model=tiny-chat"))
    field = console.get_by_label("Model", exact=True)
    field.click()
    assert field.input_value() == ""
    names = console.locator("datalist option").evaluate_all("all => all.map(one => one.value)")
    assert "tiny-ner" in names
    assert names == sorted(names)
    field.press_sequentially("tiny-ner")
    field.press("Enter")
    console.get_by_role("button", name="Classify", exact=True).wait_for()
    assert field.input_value() == "tiny-ner"
    # An unknown name changes nothing.
    field.fill("no-such-model")
    field.press("Tab")
    assert field.input_value() == "tiny-ner"
