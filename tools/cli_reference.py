"""Writes docs/cli.md: all commands with their arguments, options and an example.

`python -m tools.cli_reference` writes the page. With `--check`, it exits with 1 if the page is
outdated. tests/test_cli_reference.py compares it, too.
"""

import enum
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
import typer.main

from stoker.base.config import Settings
from stoker.cli.main import app
from stoker.cli.panels import PANELS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "cli.md"
SETTINGS = {
    "serve": "",
    "demo": "",
    "doctor": "",
    "backup": "",
    "restore": "",
    "engines install": "",
    "engines list": "",
    "engines remove": "",
    "node host": "node_",
    "node join": "node_",
}
"""Maps commands whose options override settings to the beginning of the settings' names."""
PLACEHOLDERS = {
    "<str>": "TEXT",
    "<list[str]>": "TEXT",
    "<int>": "NUMBER",
    "<int range>": "NUMBER",
    "<float>": "NUMBER",
    "<float range>": "NUMBER",
    "<path>": "PATH",
    "<file>": "FILE",
}
GLOBAL_SETTINGS = ("data_dir",)
"""Settings without such a beginning."""
_BLOCK = re.compile(r"^ *```(?:sh|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_HEAD = """\
# Command reference

Look up a command, its options and their defaults. [Command line](guide/command-line.md) explains
how to use them.

Every command has `--help`. Options in the first table precede the command, as in
`stoker --account acct_… usage`. A command exits with 0 if it succeeds, 1 after an error of the
server, and 2 after wrong use. `python -m tools.cli_reference` writes this page.
"""


def root() -> Any:
    """Returns the command `stoker` with all its commands."""
    return typer.main.get_command(app)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields each command that runs, with its words after `stoker`. Groups that only hold commands
    are not included.
    """
    children: dict[str, Any] = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield path, command
    for name, child in children.items():
        if not getattr(child, "hidden", False):
            yield from commands(child, (*path, name))


def examples(pages: Sequence[Path], program: Any) -> dict[tuple[str, ...], str]:
    """Maps commands to the first call in the shell blocks of the pages that has an argument, or to
    the first call if none has.
    """
    found: dict[tuple[str, ...], str] = {}
    for page in pages:
        for block in _BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                call = re.split(r"\s+#|\s[<>|]|\s2>", " ".join(line.split()))[0]
                if not call.startswith("stoker "):
                    continue
                path, given = words(call, program)
                if path and (path not in found or (given and not words(found[path], program)[1])):
                    found[path] = call
    return found


def words(call: str, program: Any) -> tuple[tuple[str, ...], list[str]]:
    """Splits a call into the words of its command and the remaining arguments.

    Raises `LookupError` if there is no such command.
    """
    given = shlex.split(call)[1:]
    while given and given[0].startswith("-"):
        takes_value = given[0] in ("--base-url", "--api-key", "--account")
        given = given[2 if takes_value else 1 :]
    path: list[str] = []
    children: dict[str, Any] = program.commands
    while children:
        if not given:
            return (tuple(path) if program.invoke_without_command else ()), []
        path.append(given.pop(0))
        if path[-1] not in children:
            raise LookupError(f"there is no command '{' '.join(path)}': {call}")
        program = children[path[-1]]
        children = getattr(program, "commands", {})
    return tuple(path), given


def page() -> str:
    """Returns the required content of docs/cli.md."""
    program = root()
    shown = examples(sources(), program)
    parts = [_HEAD, "## Options before the command", "", *_table(program, ("",)), ""]
    for title, names in PANELS.items():
        parts += [f"## {title}", ""]
        for name in names:
            for path, command in commands(program.commands[name], (name,)):
                parts += _section(path, command, shown.get(path))
    return "\n".join(parts)


def sources() -> list[Path]:
    """Returns the pages whose examples are shown."""
    pages = [ROOT / "README.md", *sorted((DOCS / "guide").glob("*.md")), *sorted(DOCS.glob("*.md"))]
    return [path for path in pages if path != PAGE]


def _section(path: tuple[str, ...], command: Any, example: str | None) -> list[str]:
    paragraphs = [" ".join(text.split()) for text in (command.help or "").split("\n\n")]
    lines = [f"### stoker {' '.join(path)}", "", *"\n\n".join(paragraphs).split("\n"), ""]
    lines += ["```text", f"stoker {' '.join(path)} {_usage(command)}".rstrip(), "```", ""]
    if table := _table(command, path):
        lines += [*table, ""]
    if example:
        lines += ["```bash", example, "```", ""]
    return lines


def _usage(command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    shown = [_argument(item) for item in arguments]
    return " ".join([*shown, "[OPTIONS]"])


def _argument(item: Any) -> str:
    name = str(item.metavar or item.name.upper())
    name = name.removesuffix("...") + ("…" if item.nargs != 1 else "")
    return name if item.required else f"[{name}]"


def _table(command: Any, path: tuple[str, ...]) -> list[str]:
    rows: list[str] = []
    context = typer.Context(command)
    for item in command.params:
        if getattr(item, "hidden", False) or item.name == "help":
            continue
        name = _argument(item) if item.param_type_name == "argument" else _option(item, context)
        default, variable = _default(item), _variable(item)
        if setting := _setting(item, path):
            field = Settings.model_fields[setting]
            value = field.get_default(call_default_factory=True)
            default, variable = "" if value is None else str(value), f"STOKER_{setting.upper()}"
        help_text = " ".join((item.help or "").split()).replace("|", "\\|") + _range(item)
        cells = [f"`{name}`", default and f"`{default}`", variable and f"`{variable}`", help_text]
        rows.append(f"| {' | '.join(cells)} |")
    head = ["| argument or option | default | variable | meaning |", "|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _option(item: Any, context: typer.Context) -> str:
    names = ", ".join([*item.opts, *item.secondary_opts])
    if item.is_flag or item.count:
        return names
    return f"{names} {_value(item, context)}"


def _value(item: Any, context: typer.Context) -> str:
    """Returns the placeholder of an option's value, or its choices."""
    shown = str(item.display_type_rich(ctx=context))
    return PLACEHOLDERS.get(shown, shown.strip("<>").replace("|", "/"))


def _range(item: Any) -> str:
    """Returns the range of an option's numbers as a sentence, or an empty text."""
    low, high = getattr(item, "min", None), getattr(item, "max", None)
    if low is None:
        return ""
    return f" At least {low:g}." if high is None else f" From {low:g} to {high:g}."


def _default(item: Any) -> str:
    value = item.default
    if item.required or value is None or callable(value) or value in ([], ()):
        return ""
    if isinstance(value, bool):
        if item.secondary_opts:
            return str((item.opts if value else item.secondary_opts)[0])
        return ""
    return str(value.value if isinstance(value, enum.Enum) else value)


def _variable(item: Any) -> str:
    variable = item.envvar
    return variable if isinstance(variable, str) else ", ".join(variable or ())


def _setting(item: Any, path: tuple[str, ...]) -> str | None:
    """Returns the setting that an option overrides, or None."""
    beginning = SETTINGS.get(" ".join(path))
    if beginning is None or item.param_type_name != "option" or item.is_flag:
        return None
    name = item.opts[0].removeprefix("--").replace("-", "_")
    name = name if name in GLOBAL_SETTINGS else beginning + name
    return name if name in Settings.model_fields else None


def main() -> None:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE.relative_to(ROOT)} is outdated: python -m tools.cli_reference")


if __name__ == "__main__":
    main()
