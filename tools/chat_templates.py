"""Writes docs/tool_calls.md, which shows how the tool calls of 70 public chat templates are parsed.

The templates come from llama-cpp-python's source distribution (MIT), which `make` unpacks:

    python -m tools.chat_templates unpack ARCHIVE FOLDER
    python -m tools.chat_templates page

The second command writes the page. tests/chat/test_chat_templates.py compares it.
"""

import sys
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from transformers.utils import chat_template_utils

from stoker.models.chat.answers.probing import CASES, FormatChoice, Probe, choose
from tools.marks import ROOT

PAGE = ROOT / "docs" / "tool_calls.md"
FOLDER = ROOT / ".data" / "chat_templates"
VERSION = "0.3.36"
_WITHIN = "vendor/llama.cpp/models/templates/"
_library: Any = chat_template_utils
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WHY: Mapping[tuple[str, str], str] = {
    ("MiniMax-M3", "nested arguments"): "it writes null as an empty element",
    ("NVIDIA-Nemotron-Nano-v2", "text before"): "it writes the text as another message",
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "text before"): (
        "it writes the text as a message behind the calls"
    ),
}
"""Maps a template and a case to the reason why its output is not parsed back exactly."""


class Rendering:
    """Renders conversations in this process. Only for known templates."""

    def __init__(self, template: str) -> None:
        self._template = template
        self.refusal = ""
        """Reason why the last conversation was rejected."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, begins_answer: bool
    ) -> str | None:
        try:
            (text,), _ = _library.render_jinja_template(
                conversations=[list(messages)],
                tools=list(tools) or None,
                chat_template=self._template,
                add_generation_prompt=begins_answer,
                **_TOKENS,
            )
        except Exception as error:
            self.refusal = str(error).splitlines()[0]
            return None
        return str(text)


def templates() -> Mapping[str, str]:
    """Returns the chat templates by name. Empty if they were not unpacked."""
    return {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}


@cache
def chosen(name: str) -> FormatChoice:
    """Returns the choice of how to parse the answers of a model with this template."""
    source = templates()[name]
    return choose(source, Probe(Rendering(source)))


def page() -> str:
    """Returns the text of docs/tool_calls.md."""
    rows = [_row(name, source) for name, source in templates().items()]
    proven = [choice for choice in map(chosen, templates()) if choice.is_proven]
    heads = ["template", "format", *(case.name for case in CASES), "enforced", "remarks"]
    table = [_cells(heads), _cells(["---"] * len(heads)), *map(_cells, rows)]
    return _TEXT.format(
        version=VERSION, count=len(rows), proven=len(proven), table="\n".join(table)
    )


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_SIGNS = {"read": "yes", "not read": "**no**", "not written": "-"}


def _row(name: str, source: str) -> list[str]:
    choice = chosen(name)
    results = [_SIGNS[choice.results.get(case.name, "not written")] for case in CASES]
    form = f"`{choice.form.name}`" if choice.form else "none"
    return [name, form, *results, _enforced(choice), "; ".join(_remarks(name, source, choice))]


def _enforced(choice: FormatChoice) -> str:
    if choice.form is None or not choice.form.enforced:
        return "no"
    return "yes" if choice.is_proven else "if a call is required"


def _remarks(name: str, source: str, choice: FormatChoice) -> list[str]:
    remarks: list[str] = []
    if choice.form is None:
        remarks.append("takes no tools" if "tools" not in source else "names no format of calls")
    elif not choice.is_proven:
        remarks.append(f"chosen by marks: {_why_not_tried(source)}")
    if choice.form and choice.form.why_free:
        remarks.append(choice.form.why_free.rstrip("."))
    unread = [case for case, result in choice.results.items() if result == "not read"]
    remarks += [f"{case}: {WHY[name, case]}" for case in unread if (name, case) in WHY]
    if choice.is_proven and choice.habits.single_calls:
        remarks.append("takes one call a message: several are split")
    if choice.habits.text_arguments:
        remarks.append("takes arguments as JSON")
    if choice.habits.short_ids:
        remarks.append("takes ids of nine letters or digits")
    return remarks


def _why_not_tried(source: str) -> str:
    rendering = Rendering(source)
    if not Probe(rendering).cases and rendering.refusal:
        return f"it refuses the known messages (`{rendering.refusal[:80]}`)"
    return "it leaves calls out of the assistant's messages"


def unpack(archive: Path, folder: Path) -> None:
    """Writes the chat templates of a source distribution into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as members:
        for member in members:
            path = Path(member.name)
            if _WITHIN in member.name and path.suffix == ".jinja" and member.isfile():
                content = members.extractfile(member)
                if content is not None:
                    (folder / path.name).write_bytes(content.read())


_TEXT = """\
# Tool calls of chat models

A chat model writes its calls of tools as text, each family of models in a format of its own.
When a model loads, Stoker renders known messages of the assistant through the model's chat
template, and chooses the format that reads them back exactly. A `response_template` that the
tokenizer declares is used if it reads more of them than any known format.

- A format that was tried is enforced: with `tool_choice: auto` the answer is text, or calls
  that fit the tools' schemas. `required` and a named function force a call.
- If the chat template renders no calls, the format is chosen by marks in the template or by the
  tokenizer's tokens. With `auto` it is read and not enforced; the deployment has the notice
  `tool_calls_not_tried`.
- If no format is found, calls stay text with `auto`, and `required` is refused. The deployment
  has the notice `tool_calls_not_read`.

Arguments that are written without JSON's quotes take their types from the tool's schema: `5` is
a text for a property of the type `string`. An answer may hold several calls in every format
that has them, and `parallel_tool_calls: false` forbids them. Names and arguments are streamed
as they are written, in Python's notation and in MiniMax-M3's a call at a time.

Earlier calls are rendered as the chat template takes them: with arguments as objects or as
JSON, with the ids that it accepts, and in a message for each call if it takes no more.

## What was tried

The {count} chat templates that llama-cpp-python {version} ships. {proven} of them write calls
that are read back. "yes": what the template writes for the case is read back exactly. "-": the
template does not write it. `python -m tools.chat_templates page` writes this page.

{table}
"""


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["unpack", archive, folder]:
            unpack(Path(archive), Path(folder))
        case ["page"]:
            PAGE.write_text(page(), "utf-8")
        case _:
            sys.exit(__doc__)
