"""What the commands print: results on stdout, everything that is said beside them on stderr."""

import contextlib
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.client.client import JsonObject
from stoker.client.errors import CliError

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, on one line.")]
Columns = Mapping[str, Callable[[JsonObject], object]]

# A pipe has no width: nothing may be cut off or folded there.
PIPE_WIDTH = 4096


def console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        width=None if stream.isatty() else PIPE_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def printable(value: object) -> str:
    """Text that others wrote, without what would steer the terminal."""
    return "".join(
        character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}"
        for character in str(value)
    )


def write(text: str) -> None:
    """Print a piece of text that others wrote, at once."""
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")))
    sys.stdout.flush()


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_pretty(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def say(message: str, style: str | None = None) -> None:
    """Tell the person at the terminal something that is no result."""
    console(stderr=True).print(message, style=style, soft_wrap=True)


def show_list(objects: Sequence[JsonObject], columns: Columns, *, as_json: bool, none: str) -> None:
    """Objects as a table, or as a JSON array. `none` is said where there are none."""
    if as_json:
        print_json(objects)
    elif objects:
        print_table(list(columns), [[cell(o) for cell in columns.values()] for o in objects])
    else:
        say(none)


def show_object(value: JsonObject, fields: Columns, *, as_json: bool) -> None:
    """One object's fields, one a line and without the empty ones, or as JSON."""
    if as_json:
        print_json(value)
        return
    cells = [(name, cell(value)) for name, cell in fields.items()]
    print_table(None, [[name, content] for name, content in cells if content not in (None, "")])


def print_table(
    header: list[str] | None,
    rows: Sequence[Sequence[object]],
    styles: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Rows in columns. `styles` are of cells, by their text."""
    from rich.table import Table
    from rich.text import Text

    width = max((len(row) for row in rows), default=0)
    table = Table(box=None, show_header=header is not None, pad_edge=False, header_style="bold")
    for index in range(width):
        # The first column is what other commands are given: it is never cut.
        table.add_column(header[index].upper() if header else "", no_wrap=index == 0)
    for row in rows:
        cells = ["-" if content in (None, "") else printable(content) for content in row]
        table.add_row(*(Text(text, styles.get(text, ""), overflow="fold") for text in cells))
    console().print(table)


def show_error(error: CliError) -> None:
    out = console(stderr=True)
    out.print("Error: ", style="bold red", end="")
    out.print(printable(error.message), soft_wrap=True)
    for name, value in error.details().items():
        out.print(f"  {name}: {printable(value)}", style="dim", soft_wrap=True)
    if error.hint:
        out.print(error.hint, soft_wrap=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost; ends the command unless the answer is yes."""
    if not yes and not typer.confirm(question, err=True):
        raise typer.Exit(1)


def moment(value: Any) -> str:
    """A timestamp of the API, to the second."""
    return str(value or "")[:19].replace("T", " ")


def size(count: float | None) -> str:
    """Bytes for a person, in decimal units."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def count(value: float | None) -> str:
    """A large number for a person: 109.5 M."""
    if value is None:
        return ""
    for unit in ("", " k", " M"):
        if value < 1000:
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} B"


def show_done(answer: JsonObject, message: str, *, as_json: bool) -> None:
    """Something was done that leaves nothing to show."""
    if as_json:
        print_json(answer)
    else:
        say(message)


@contextlib.contextmanager
def spinner(message: str) -> Generator[Callable[[str], None], None, None]:
    """A line on stderr while something is waited for; gives what changes its text.

    Where stderr is no terminal, each text is a line of its own, once.
    """
    from rich.text import Text

    out = console(stderr=True)
    if not out.is_terminal:
        update = _once(out)
        update(message)
        yield update
        return
    with out.status(Text(printable(message))) as status:
        yield lambda text: status.update(Text(printable(text)))


def _once(out: "Console") -> Callable[[str], None]:
    last = ""

    def update(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            out.print(printable(text))

    return update
