"""Writes docs/tasks/: a page for each task, with a call and the printed response.

`python -m tools.task_pages` writes the pages. With `--check`, it exits with 1 if one differs.
`python -m tools.task_pages .data/demo.json` first calls a running demo, and stores its responses in
docs/tasks/responses.json. tests/demo/test_task_pages.py compares the stored responses with real
ones.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import httpx
from pydantic_core import PydanticUndefined

from stoker.demo.examples import EXAMPLES, MEDIA
from stoker.models.tasks.base import Task
from stoker.models.tasks.registry import TASKS
from tools.reference.schemas import described, values
from tools.task_pictures import PICTURES, picture

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tasks"
RESPONSES = FOLDER / "responses.json"
MOST_ITEMS = 4
MOST_CHARS = 60
DIGITS = 4
CUT = "…"
"""Stands for the rest of a list or text."""


def shortened(value: Any) -> Any:
    """Returns a response as pages show it: numbers are rounded, long lists and texts end with …."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: shortened(field) for name, field in fields.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        shown = [shortened(item) for item in items[:MOST_ITEMS]]
        return [*shown, CUT] if len(items) > MOST_ITEMS else shown
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, str) and len(value) > MOST_CHARS:
        return value[:MOST_CHARS] + CUT
    return value


def ask(client: httpx.Client, name: str) -> Any:
    """Calls a task with its example. Returns the response."""
    example, path = EXAMPLES[name], TASKS[name].path
    if not example.files:
        answer = client.post(path, json={"model": example.model, **example.body})
    else:
        fields = {"model": example.model, **example.body}
        form = {key: v if isinstance(v, str) else json.dumps(v) for key, v in fields.items()}
        media = {
            key: (file, (ROOT / MEDIA / file).read_bytes()) for key, file in example.files.items()
        }
        answer = client.post(path, data=form, files=media)
    return answer.raise_for_status().json()


def record(state: Mapping[str, Any]) -> None:
    """Stores the responses of a running demo. `state` is the content of its demo.json."""
    headers = {"authorization": f"Bearer {state['account_key']}"}
    with httpx.Client(base_url=state["base_url"], headers=headers, timeout=120) as client:
        answers = {name: ask(client, name) for name in TASKS}
    responses = {name: shortened(answer) for name, answer in answers.items()}
    for name in PICTURES:
        picture_of(name).write_bytes(picture(name, answers[name]))
    RESPONSES.parent.mkdir(exist_ok=True)
    RESPONSES.write_text(json.dumps(responses, indent=1, ensure_ascii=False) + "\n")


def picture_of(name: str) -> Path:
    """Returns the file with the drawn response of a task."""
    return FOLDER / f"{name}.png"


def pages() -> dict[Path, str]:
    """Maps each page to its required content."""
    responses = json.loads(RESPONSES.read_text())
    return {FOLDER / f"{name}.md": _page(task, responses[name]) for name, task in TASKS.items()}


def _page(task: Task, response: Any) -> str:
    pipelines = " or ".join(f"`{name}`" for name in task.pipelines)
    example = EXAMPLES[task.name]
    return "\n".join(
        [
            f"# {task.summary}",
            "",
            f"Call a deployment of {pipelines} at `POST {task.path}`.",
            "",
            "The call works with `stoker demo`, from the project's folder. Set `STOKER_API_KEY` to",
            "the key that it prints. [Call a task](../guide/calling.md) describes forms, lists and",
            "errors of all tasks, [task endpoints](../tasks.md) the others.",
            "",
            "```sh",
            example.curl(task.path, "http://127.0.0.1:8000", "$STOKER_API_KEY"),
            "```",
            "",
            f"The model `{example.model}` responds:",
            "",
            "```json",
            _json(response),
            "```",
            "",
            *_drawn(task.name),
            *_cut_note(response),
            *_random_note(example.model),
            "## Fields",
            "",
            *_fields(task),
            "",
            "## Models",
            "",
            f"Tested with {', '.join(task.families)}.",
            "",
        ]
    )


def _json(response: Any) -> str:
    """Returns a response with one item of its outer list, or one field, on a line."""
    text = json.dumps(response, ensure_ascii=False)
    if len(text) <= 100:
        return text
    if isinstance(response, list):
        items = [json.dumps(item, ensure_ascii=False) for item in cast("list[Any]", response)]
        return "[\n  " + ",\n  ".join(items) + "\n]"
    fields = cast("dict[str, Any]", response).items()
    lines = [f"{json.dumps(name)}: {json.dumps(v, ensure_ascii=False)}" for name, v in fields]
    return "{\n  " + ",\n  ".join(lines) + "\n}"


def _drawn(name: str) -> list[str]:
    if name not in PICTURES:
        return []
    return [f"![The picture of the call, and the response]({name}.png)", ""]


def _cut_note(response: Any) -> list[str]:
    is_cut = CUT in json.dumps(response, ensure_ascii=False)
    return ["`…` stands for the rest of a list or text.", ""] if is_cut else []


def _random_note(model: str) -> list[str]:
    is_random = model.startswith("random-")
    return ["The model has random weights, so its answer has no meaning.", ""] if is_random else []


def _fields(task: Task) -> list[str]:
    rows = ["| field | values | default | meaning |", "|---|---|---|---|"]
    schema = task.request.model_json_schema()
    for name, field in task.request.model_fields.items():
        shape = schema["properties"][field.alias or name]
        is_required = field.is_required()
        default = field.get_default(call_default_factory=True)
        has_default = default is not None and default is not PydanticUndefined and not is_required
        shown = f"`{json.dumps(default)}`" if has_default else "required" if is_required else ""
        accepted = values(shape, schema.get("$defs", {}))
        rows.append(f"| `{field.alias or name}` | {accepted} | {shown} | {described(shape)} |")
    return rows


def main() -> None:
    given = sys.argv[1:]
    if given and given != ["--check"]:
        record(json.loads(Path(given[0]).read_text()))
    for path, text in pages().items():
        if "--check" not in given:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is outdated: python -m tools.task_pages")


if __name__ == "__main__":
    main()
