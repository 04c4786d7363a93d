"""Checks `stoker` commands of texts against the command line, without running them."""

import shlex
from collections.abc import Sequence
from typing import Any

from tools.cli_reference import root, words


def check_command(call: str) -> dict[str, Any]:
    """Parses a call as the command line does. Returns the parameters of its command.

    Raises `LookupError` if there is no such command, and `click.UsageError` if an option or an
    argument is unknown, missing or invalid.
    """
    program = root()
    program.make_context("stoker", shlex.split(call)[1:])
    path, given = words(call, program)
    command = program
    for name in path:
        command = command.commands[name]
    return command.make_context(" ".join(path), given).params


def options(path: Sequence[str]) -> set[str]:
    """Returns the names of all options of a command and of its groups."""
    command, names = root(), set[str]()
    for name in ("", *path):
        command = command.commands[name] if name else command
        for item in command.params:
            names |= {*item.opts, *item.secondary_opts}
    return names | {"--help"}
