"""Reads the server's settings for commands."""

import difflib
import functools
import os
import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stoker.base.extras import install_command
from stoker.client.errors import WrongUseError

if TYPE_CHECKING:
    from stoker.base.config import Settings

HINT = "Set STOKER_ variables or lines in .env. docs/settings.md lists all settings."

_PREFIX = "STOKER_"
_OF_COMMANDS = ("base_url", "api_key", "account")
"""Variables of the command line that are not server settings."""
_OF_KUBERNETES = re.compile(r"(.*_)?(service_(host|port).*|port_[0-9]+_.*)")
"""Prefixes of variables that Kubernetes adds for a service named `stoker`."""
_ALIKE = 0.75
"""Minimum similarity, 0 to 1, at which a name counts as misspelt."""


def read_settings(**given: Any) -> "Settings":
    """Reads settings from the environment and from keyword arguments.

    Raises `WrongUseError` with the names of invalid settings.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from stoker.base.config import Settings
    from stoker.runtime import choose

    _warn_of_misspelt(tuple(Settings.model_fields))
    try:
        settings = Settings(**given)
        choose.builder(settings.runtime)
    except ValidationError as error:
        wrong = "; ".join(_told(problem) for problem in error.errors())
        raise WrongUseError(f"Invalid settings: {wrong}.", hint=HINT) from error
    except SettingsError as error:
        # Invalid JSON in a list. The library's message names the field in quotes.
        name = str(error).partition('"')[2].partition('"')[0]
        raise WrongUseError(
            f'Invalid settings: {_variable(name)}: must be a list in JSON, as in ["a", "b"].',
            hint=HINT,
        ) from error
    except choose.UnknownRuntimeError as error:
        raise WrongUseError(f"Invalid settings: STOKER_RUNTIME: {error}", hint=HINT) from error
    if (settings.database_url or "").startswith("postgresql") and find_spec("asyncpg") is None:
        raise WrongUseError(
            "STOKER_DATABASE_URL names a PostgreSQL database, but its driver is not installed.",
            hint=f"Install the extra 'postgres': {install_command('postgres')}",
        )
    return settings


@functools.cache
def _warn_of_misspelt(known: tuple[str, ...]) -> None:
    """Warns on stderr about each variable that is probably a misspelt setting. Runs once."""
    for line in misspelt(os.environ, known):
        sys.stderr.write(f"Warning: {line}\n")


def misspelt(variables: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns warnings for unknown variables that resemble a setting."""
    names, warnings = [*known, *_OF_COMMANDS], list[str]()
    for variable in sorted(
        candidate for candidate in variables if candidate.upper().startswith(_PREFIX)
    ):
        name = variable[len(_PREFIX) :].lower()
        if name in names or _OF_KUBERNETES.fullmatch(name):
            continue
        if near := difflib.get_close_matches(name, names, n=1, cutoff=_ALIKE):
            warnings.append(
                f"{variable} is not a setting and is ignored. Did you mean {_variable(near[0])}?"
            )
    return warnings


def _told(error: Any) -> str:
    name, *place = error["loc"]
    inside = "".join(f"[{part}]" for part in place)
    return f"{_variable(str(name))}{inside}: {str(error['msg']).removeprefix('Value error, ')}"


def _variable(name: str) -> str:
    return f"STOKER_{name.upper()}"
