"""Confirms the deletion of objects."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from stoker.cli import output
from stoker.client.client import Client, JsonObject
from stoker.client.errors import WrongUseError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation on the terminal. Exits the command unless the answer is yes.

    Raises `WrongUseError` without a terminal.
    """
    if yes:
        return
    question = output.printable(question)
    if not sys.stdin.isatty():
        raise WrongUseError(
            f"Not confirmed: {question} Standard input is not a terminal.",
            hint="Add --yes to skip the confirmation.",
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def delete(
    server: Client, path: str, question: Callable[[JsonObject], str], *, yes: bool
) -> JsonObject:
    """Deletes an object after a confirmation. Returns the server's answer.

    Args:
        question: returns the question for the object. It names the object.
    """
    if not yes:
        confirm(question(server.get(path)), yes=False)
    return server.delete(path)
