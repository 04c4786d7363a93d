"""docs/tasks/ has a page for each task, with the stored response of a demo model."""

import json

from stoker.demo.examples import EXAMPLES
from stoker.models.tasks.registry import TASKS
from tools.task_pages import CUT, FOLDER, RESPONSES, pages, picture_of, shortened
from tools.task_pictures import PICTURES


def test_pages_are_written() -> None:
    written = pages()
    assert {*FOLDER.glob("*.md")} == {*written} == {FOLDER / f"{name}.md" for name in TASKS}
    outdated = [path.name for path, text in written.items() if path.read_text() != text]
    assert outdated == [], "run: python -m tools.task_pages"


def test_pictures_exist() -> None:
    assert {*FOLDER.glob("*.png")} == {picture_of(name) for name in PICTURES}
    assert all(picture_of(name).stat().st_size < 20_000 for name in PICTURES)


def test_every_task_has_a_response() -> None:
    responses = json.loads(RESPONSES.read_text())
    assert responses.keys() == TASKS.keys() == EXAMPLES.keys()
    assert all(responses.values())


def test_a_page_shows_call_response_and_fields() -> None:
    page = pages()[FOLDER / "text-classification.md"]
    assert "curl http://127.0.0.1:8000/v1/classifications/text" in page
    assert '{"label": "positive", "score": 0.9' in page
    assert "| `top_k` | 1 to 1000 |  | Number of labels, best first. Default: all. |" in page
    assert "| `function_to_apply` | `sigmoid`, `softmax`, `none` |" in page


def test_long_responses_are_shortened() -> None:
    given = {"vector": [0.123456] * 9, "image": "A" * 99, "few": [1, 2], "text": "short"}
    assert shortened(given) == {
        "vector": [0.1235] * 4 + [CUT],
        "image": "A" * 60 + CUT,
        "few": [1, 2],
        "text": "short",
    }
