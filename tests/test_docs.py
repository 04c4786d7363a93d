"""Tests of the documentation: a setting, error or route that the docs do not name fails here."""

import importlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from stoker.base import errors
from stoker.base.config import Settings
from stoker.base.settings.accounts import AccountSettings
from stoker.base.settings.artifacts import ArtifactSettings
from stoker.base.settings.calls import CallSettings
from stoker.base.settings.jobs import JobSettings
from stoker.base.settings.listening import ListeningSettings
from stoker.base.settings.runtime import RuntimeSettings
from stoker.base.settings.sources import SourceSettings
from stoker.base.settings.storage import StorageSettings
from stoker.demo.examples import EXAMPLES, MEDIA_CALLS, ExampleRequest
from stoker.inference.openai.registry import OPERATIONS
from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import EngineRecord
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT, TEXT, TEXT_GENERATION, VISION
from stoker.models.stages.kinds import LANGUAGE, ModelKind
from stoker.models.tasks.base import Task
from stoker.models.tasks.known_fields import DIALECTS, ENDPOINTS, FIELDS, KnownField
from stoker.models.tasks.registry import GENERATING, MEDIA, SERVED, TASKS
from stoker.workloads.videos.endpoints import CREATE
from tests.openai.test_fields import REQUESTS
from tests.support.pages import guide_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


GROUPS: Mapping[str, type[BaseSettings]] = {
    "HTTP server": ListeningSettings,
    "Database, secret and object store": StorageSettings,
    "Runtime, memory and engines": RuntimeSettings,
    "Requests, calls and replicas": CallSettings,
    "Uploads and inspections": ArtifactSettings,
    "Model folders, hub and fetched media": SourceSettings,
    "Accounts, keys and console": AccountSettings,
    "Generated files, jobs and agents": JobSettings,
}
"""Maps headings of docs/settings.md to classes of settings."""


def settings_table() -> str:
    """Returns the required content of docs/settings.md. `python -m tests.test_docs` writes it."""
    lines = [
        "# Settings",
        "",
        "Look up a setting of the server. Settings are read from the environment, or from `.env`",
        "in the working folder. Lists are JSON.",
        "",
    ]
    for heading, group in GROUPS.items():
        lines += [f"## {heading}", "", "| setting | default | meaning |", "|---|---|---|"]
        for name, field in group.model_fields.items():
            default = field.get_default(call_default_factory=True)
            shown = "" if default is None else f"`{default}`"
            lines.append(f"| `STOKER_{name.upper()}` | {shown} | {field.description} |")
        lines.append("")
    return "\n".join(lines)


def tasks_page() -> str:
    """Returns the required content of docs/tasks.md. `python -m tests.test_docs` writes it."""
    rows = [
        "| task | endpoint | model families tested | input forms | parameters and their defaults |",
        "|---|---|---|---|---|",
    ]
    calls: list[str] = []
    for task in TASKS.values():
        rows.append(
            f"| {' or '.join(f'`{name}`' for name in task.pipelines)} | `{task.path}` "
            f"| {', '.join(task.families)} | {_input_forms(task)} | {_defaults(task)} |"
        )
        calls += _call(task.summary, task.path, EXAMPLES[task.name], page=f"tasks/{task.name}.md")
    summaries = {operation.path: operation.summary for operation in (*OPERATIONS, CREATE)}
    for path, example in MEDIA_CALLS.items():
        calls += _call(summaries[path], path, example)
    tables = [*_language_table(), *_media_table(), *_engine_table()]
    return "\n".join([TASKS_HEAD, *rows, "", *tables, _company() + TASKS_CALLS, "", *calls])


FIELDS_HEAD = """# Fields of other servers

The endpoints of OpenAI's conventions take OpenAI's fields, and fields of vLLM, SGLang, llama.cpp
and others. This page lists the fields that are not OpenAI's, or that an endpoint does not honour.
A field is one of these:

- **honoured**: it does what it does on the server that it comes from.
- **no effect**: it is accepted, and the answer is the same without it.
- **refused**: it would change the answer, and the request is a 400 that names the field. A value
  that asks for what the server does anyway is accepted, and so is null.

A field that no server knows is ignored, because OpenAI's clients send new fields all the time. A
name that is one letter away from a field's name is a 400 that names the field. `/v1/rerank` and the
other task endpoints refuse unknown fields. Fields of requests for images, speech and videos are not
in the table.

The names are those of vLLM 0.33.0 and 0.9.2, SGLang 0.5.23 and llama.cpp's server (0177c34227), and
some of other servers and APIs.

| field | known to | endpoints | here | accepted values |
|---|---|---|---|---|
"""


def fields_page() -> str:
    """Returns the required content of docs/fields.md. `python -m tests.test_docs` writes it."""
    rows: dict[str, tuple[KnownField, list[str]]] = {}
    for endpoint in ENDPOINTS:
        model_fields = REQUESTS[endpoint][0].model_fields
        known_names = {field.alias or name for name, field in model_fields.items()}
        for name, row in FIELDS[endpoint].items():
            if row.effect == "honoured" and (name not in known_names or "OpenAI" in DIALECTS[name]):
                continue
            shown = replace(row, dialects=DIALECTS[name])
            rows.setdefault(repr(shown), (shown, []))[1].append(endpoint)
    lines = [_field_row(*row) for row in sorted(rows.values(), key=lambda row: row[0].name)]
    return FIELDS_HEAD + "\n".join(lines) + "\n"


def _field_row(row: KnownField, endpoints: list[str]) -> str:
    # The row's text continues a sentence that begins with the field's name.
    why = f": {row.why.removeprefix('is ')}" if row.why else ""
    cells = [
        f"`{row.name}`",
        ", ".join(row.dialects),
        "all" if len(endpoints) == len(ENDPOINTS) else ", ".join(endpoints),
        f"{row.effect}{why}",
        ", ".join(f"`{json.dumps(value)}`" for value in row.accepted),
    ]
    return f"| {' | '.join(cells)} |"


def _language_table() -> list[str]:
    rows = ["| pipeline | endpoints | kinds served, all tested |", "|---|---|---|"]
    kinds = {TEXT_GENERATION: TEXT, IMAGE_TEXT_TO_TEXT: VISION}
    for pipeline, paths in GENERATING.items():
        shown = ", ".join(f"`{path}`" for path in paths)
        rows.append(f"| `{pipeline}` | {shown} | {', '.join(sorted(kinds[pipeline]))} |")
    return [LANGUAGE_HEAD, *rows, ""]


def _media_table() -> list[str]:
    rows = ["| pipeline | endpoints | model families tested |", "|---|---|---|"]
    for pipeline in MEDIA.values():
        paths = ", ".join(f"`{path}`" for path in pipeline.paths)
        rows.append(f"| `{pipeline.name}` | {paths} | {', '.join(pipeline.families)} |")
    return [MEDIA_HEAD, *rows, ""]


def _engine_table() -> list[str]:
    rows = ["| engine | pipelines | device | dtype | config |", "|---|---|---|---|---|"]
    for engine in ENGINES.values():
        rows += [_engine_row(engine, kind) for kind in engine.serves]
    return [ENGINES_HEAD, *rows, ""]


def _engine_row(engine: EngineRecord, kind: ModelKind) -> str:
    options = engine.options.model.model_fields if engine.options else ()
    has_options = engine.options is not None and kind in engine.options.kinds
    names = [*(options if has_options else ())]
    if engine.generation and kind in LANGUAGE:
        names += engine.generation.model_fields
    cells = [engine.devices, engine.serves[kind], names]
    shown = [", ".join(f"`{name}`" for name in cell) for cell in cells]
    return f"| `{engine.name}` | {_of_kind(kind)} | {' | '.join(shown)} |"


def _of_kind(kind: ModelKind) -> str:
    if kind is ModelKind.PASSES:
        return "all that are not named below"
    return ", ".join(f"`{name}`" for name, pipeline in SERVED.items() if pipeline.kind is kind)


def _company() -> str:
    """Returns the handwritten section unchanged."""
    page = (DOCS / "tasks.md").read_text()
    return page[page.index("## Company") : page.index("## Calls")]


def _call(summary: str, path: str, example: ExampleRequest, page: str = "") -> list[str]:
    call = example.curl(path, "$STOKER_BASE_URL", "$STOKER_API_KEY")
    more = f": [fields and response]({page})" if page else ""
    return [f"### {summary}", "", f"`POST {path}`{more}", "", "```sh", call, "```", ""]


TASKS_HEAD = """\
# Task endpoints

Look up the endpoint, the parameters and an example call of each task.

One input returns one result. A list of inputs returns a list of results in the same order. A
deployment serves the endpoints of its pipeline. As in Hugging Face clients, an object `parameters`
may contain the parameters. `model` selects the deployment if a key is valid for several.

Strings for media in JSON are a URL, a data URI or base64. Endpoints also accept a form
(`multipart/form-data`) or a file as the body (`image/*`, `audio/*`, `video/*`, with other fields in
the query). Audio may also be an array of numbers.
"""
LANGUAGE_HEAD = """\
## Language models

These models are called through the [OpenAI API](guide/openai.md). For text, a kind is the
`model_type` of config.json. Encoders among them (such as bert and roberta) need `is_decoder`. For
images, a kind is an architecture. The logits of each kind equal those of transformers, alone and
in a batch. Other kinds are refused at the push. [Model files](guide/model-files.md) lists the
fields of generation_config.json that apply.
"""
MEDIA_HEAD = """\
## Media

These pipelines generate or transcribe media. They are called through the OpenAI API. Their fields
are in [images](guide/images.md), [speech](guide/speech.md) and
[transcription](guide/transcription.md).
"""
ENGINES_HEAD = """\
## Engines

Values of a deployment's `engine`, with their devices, values of `dtype` in addition to `auto`, and
fields of `config`. `auto` chooses the first engine of this list that serves the pipeline.
`openvino` runs on torch until the model is converted.
"""
TASKS_CALLS = """\
## Calls

These calls work with `stoker demo`, from the project's folder. Set `STOKER_BASE_URL` and
`STOKER_API_KEY` to the values that it prints."""


def _input_forms(task: Task) -> str:
    kinds = sorted(set(task.media.values()))
    texts = [name for name in task.request.input_fields if name not in task.media]
    forms = [f"{kind}: JSON, form, bare file" for kind in kinds]
    return "; ".join(forms + [f"`{name}`: JSON" for name in texts])


def _defaults(task: Task) -> str:
    shown = [
        f"`{name}`"
        + (f" {field.default}" if field.default not in (None, PydanticUndefined) else "")
        for name, field in task.request.model_fields.items()
        if name not in {*task.request.input_fields, "model"}
    ]
    return ", ".join(shown) or "none"


def _shown(default: Any) -> str:
    """Returns a default as JSON."""
    return json.dumps(round(default, 4) if isinstance(default, float) else default)


def error_classes() -> list[type[errors.StokerError]]:
    return errors.StokerError.__subclasses__()


def test_settings_are_listed() -> None:
    assert (DOCS / "settings.md").read_text() == settings_table()
    grouped = [name for group in GROUPS.values() for name in group.model_fields]
    assert sorted(grouped) == sorted(Settings.model_fields)


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_errors_are_listed(error: type[errors.StokerError]) -> None:
    text = (DOCS / "errors.md").read_text()
    assert re.search(rf"\| {error.status} \| `{error.type}` \|.*`{error.code}`", text), error


def test_codes_are_listed() -> None:
    """Every error code in the source is documented."""
    text = (DOCS / "errors.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "stoker").rglob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', source))
    assert codes
    assert [code for code in sorted(codes) if f"`{code}`" not in text] == []


def test_every_code_has_one_anchor() -> None:
    """`docs/errors.md#CODE` is the address of a code's explanation, next to its name."""
    text = (DOCS / "errors.md").read_text()
    marked = re.findall(r'^\| <a id="(\w+)"></a>`\1` \| \S', text, re.MULTILINE)
    assert len(marked) == len({*marked}) == text.count("<a id=")
    listed = {*re.findall(r"\[`(\w+)`\]\(#\1\)", text)}
    source = "\n".join(path.read_text() for path in (ROOT / "stoker").rglob("*.py"))
    codes = {error.code for error in error_classes()} | {*re.findall(r'code="([a-z_]+)"', source)}
    assert len(codes) > 70
    assert (codes | listed) - {*marked} == set()


def test_tasks_are_listed() -> None:
    assert (DOCS / "tasks.md").read_text() == tasks_page()


def test_fields_are_listed() -> None:
    assert (DOCS / "fields.md").read_text() == fields_page()


def test_tasks_name_the_families_that_were_tested() -> None:
    assert [task.name for task in TASKS.values() if not task.families] == []


@pytest.mark.parametrize("page", [README, CONTRIBUTING, *sorted(DOCS.rglob("*.md"))], ids=str)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:stoker|tests|tools|bench|docs)/[\w./-]*)`", page.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_contributors_find_what_they_are_told_to_change() -> None:
    named = re.findall(r"`(\w+)` of\s+`(stoker/[\w/]+)\.py`", CONTRIBUTING.read_text())
    assert len(named) > 12
    missing = [
        (name, path)
        for name, path in named
        if not hasattr(importlib.import_module(path.replace("/", ".")), name)
    ]
    assert not missing


def test_the_drawing_of_the_house_is_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [
        contract["layers"]
        for contract in contracts["contracts"]
        if contract.get("containers") == ["stoker"]
    ]
    drawing = (DOCS / "architecture.md").read_text().partition("## Folders")[2].split("```")[1]
    drawn = re.findall(r"^  (\w+)(?:/|\.py)", drawing, re.MULTILINE)
    for layer in layers:
        names = {*re.split(r"[ |]+", layer)} - {"__main__"}
        assert {*drawn[: len(names)]} == names
        drawn = drawn[len(names) :]
    assert drawn == []


def test_links_lead_somewhere() -> None:
    for page in (README, *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_lists_each_guide() -> None:
    text = README.read_text()
    guides = [page.relative_to(ROOT).as_posix() for page in (DOCS / "guide").glob("*.md")]
    assert [page for page in guides if f"]({page})" not in text] == []


def test_anchors_are_headings() -> None:
    for page in (README, CONTRIBUTING, *DOCS.rglob("*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            linked = (page.parent / target if target else page).read_text()
            assert anchor in anchors(linked), f"{page}: {anchor}"


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page: those of its headings, and explicit ones."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {anchor_of(heading) for heading in headings} | {*re.findall(r'<a id="(\w+)">', text)}


def anchor_of(heading: str) -> str:
    """Returns the anchor that Markdown viewers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


MOST_WORDS = 1500


def test_pages_are_short() -> None:
    pages = [*(DOCS / "guide").glob("*.md"), *(DOCS / "architecture").glob("*.md")]
    assert len(pages) > 30
    for page in [*pages, DOCS / "guide.md", DOCS / "architecture.md"]:
        assert len(page.read_text().split()) <= MOST_WORDS, page


def test_the_guide_lists_its_pages() -> None:
    assert {*guide_pages()} == {*(DOCS / "guide").glob("*.md")}


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings_table())
    (DOCS / "tasks.md").write_text(tasks_page())
    (DOCS / "fields.md").write_text(fields_page())
