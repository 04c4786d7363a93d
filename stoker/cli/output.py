"""Prints results to stdout and all other messages to stderr."""

import contextlib
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli import hints
from stoker.client.client import JsonObject
from stoker.client.errors import StokerError

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
Columns = Mapping[str, Callable[[JsonObject], object]]

# A pipe has no width, so nothing is cut or wrapped.
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
    """Returns untrusted text without terminal control characters."""
    return "".join(
        character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}"
        for character in str(value)
    )


def write(text: str) -> None:
    """Prints a piece of untrusted text immediately."""
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")))
    sys.stdout.flush()


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_pretty(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def say(message: str, style: str | None = None) -> None:
    """Prints a message to stderr."""
    console(stderr=True).print(message, style=style, soft_wrap=True)


def show_list(objects: Sequence[JsonObject], columns: Columns, *, as_json: bool, none: str) -> None:
    """Prints objects as a table or a JSON array. Prints `none` if the list is empty."""
    if as_json:
        print_json(objects)
    elif objects:
        print_table(list(columns), [[cell(o) for cell in columns.values()] for o in objects])
    else:
        say(none)


def show_object(value: JsonObject, fields: Columns, *, as_json: bool) -> None:
    """Prints an object's non-empty fields, one per line, or as JSON."""
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
    """Prints rows in columns, or as records of one field a line if a terminal is too narrow.

    Only prose wraps: ids and numbers stay whole, so that they can be read and copied.

    Args:
        styles: cell text -> style of that cell.
    """
    from rich.table import Table
    from rich.text import Text

    out = console()
    cells = [["-" if content in (None, "") else printable(content) for content in r] for r in rows]
    heads = [name.upper() for name in header] if header else []
    columns = [[row[index] for row in cells] for index in range(len(cells[0]) if cells else 0)]
    widths = [
        max(_least_width(column), len(heads[index]) if heads else 0)
        for index, column in enumerate(columns)
    ]
    if heads and out.is_terminal and sum(widths) + GAP * len(widths) > out.width:
        _print_records(out, heads, cells, styles)
        return
    table = Table(box=None, show_header=bool(heads), pad_edge=False, header_style="bold")
    for index, width in enumerate(widths):
        # The first column is an argument of other commands, so it never wraps.
        name = heads[index] if heads else ""
        table.add_column(name, no_wrap=index == 0, min_width=width)
    for row in cells:
        table.add_row(*(Text(text, styles.get(text, ""), overflow="fold") for text in row))
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    # Cells of the last column are padded.
    for line in captured.get().splitlines():
        print(line.rstrip())


GAP = 2
"""Spaces between two columns."""
PROSE = 24
"""Minimum width of a prose column, in characters. Longer words are never broken."""


def _least_width(column: Sequence[str]) -> int:
    """Returns the width in characters below which a column's cells would break inside a word."""
    if any(len(text) > PROSE and " " in text for text in column):
        return max(PROSE, *map(_longest_word, column))
    return max(map(len, column), default=1)


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _print_records(
    out: "Console", heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
) -> None:
    from rich.text import Text

    width = max(map(len, heads))
    for number, row in enumerate(rows):
        if number:
            out.print()
        for name, text in zip(heads, row, strict=True):
            if text != "-":
                head = (f"{name:{width}}  ", "bold")
                out.print(Text.assemble(head, (text, styles.get(text, ""))), soft_wrap=True)


def shortened(text: str, width: int) -> str:
    """Returns text of at most `width` characters, with an ellipsis in place of the middle."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def show_error(error: StokerError) -> None:
    out = console(stderr=True)
    out.print("Error: ", style="bold red", end="")
    out.print(printable(hints.message(error)), soft_wrap=True)
    for name, value in error.details().items():
        out.print(f"  {name}: {printable(value)}", style="dim", soft_wrap=True)
    if hint := hints.hint(error):
        out.print(hint, soft_wrap=True)


def moment(value: Any) -> str:
    """Formats an API timestamp to the second."""
    return str(value or "")[:19].replace("T", " ")


def size(count: float | None) -> str:
    """Formats bytes in decimal units."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def count(value: float | None) -> str:
    """Formats a large number, such as 109.5 M."""
    if value is None:
        return ""
    for unit in ("", " k", " M"):
        if value < 1000:
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} B"


def show_done(answer: JsonObject, message: str, *, as_json: bool) -> None:
    """Prints the result of an action that returns no object."""
    if as_json:
        print_json(answer)
    else:
        say(message)


@contextlib.contextmanager
def spinner(message: str) -> Generator[Callable[[str], None], None, None]:
    """Shows a status line with the elapsed time on stderr. Yields a function that changes its text.

    If stderr is not a terminal, each text is printed once as a separate line.
    """
    out = console(stderr=True)
    if not out.is_terminal:
        update = _once(out)
        update(message)
        yield update
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(printable(message), total=None)
        yield lambda text: bar.update(task, description=printable(text))


def _once(out: "Console") -> Callable[[str], None]:
    last = ""

    def update(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            out.print(printable(text))

    return update
