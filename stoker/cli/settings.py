"""The server's settings as the commands read them."""

from typing import TYPE_CHECKING, Any

from stoker.client.errors import WrongUseError

if TYPE_CHECKING:
    from stoker.config import Settings

HINT = "Settings are STOKER_ variables, or lines in .env; docs/settings.md lists them."


def read_settings(**given: Any) -> "Settings":
    """From the environment and what was given. Raises `WrongUseError`, naming the wrong ones."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from stoker.config import Settings
    from stoker.runtime import choose

    try:
        settings = Settings(**given)
        choose.builder(settings.runtime)
    except ValidationError as error:
        wrong = "; ".join(_told(one) for one in error.errors())
        raise WrongUseError(f"Wrong settings: {wrong}.", hint=HINT) from error
    except SettingsError as error:
        # A list that is no JSON: the library's message names the field in quotes.
        name = str(error).partition('"')[2].partition('"')[0]
        raise WrongUseError(
            f'Wrong settings: {_variable(name)}: must be a list in JSON, as in ["a", "b"].',
            hint=HINT,
        ) from error
    except choose.UnknownRuntimeError as error:
        raise WrongUseError(f"Wrong settings: STOKER_RUNTIME: {error}", hint=HINT) from error
    return settings


def _told(error: Any) -> str:
    name, *place = error["loc"]
    inside = "".join(f"[{part}]" for part in place)
    return f"{_variable(str(name))}{inside}: {str(error['msg']).removeprefix('Value error, ')}"


def _variable(name: str) -> str:
    return f"STOKER_{name.upper()}"
