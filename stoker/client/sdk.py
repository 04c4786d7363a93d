"""Loads the OpenAI SDK, which is not a dependency."""

from typing import TYPE_CHECKING

from .errors import WrongUseError

if TYPE_CHECKING:
    from types import ModuleType


def openai_sdk() -> "ModuleType":
    """Returns the module `openai`. Raises `WrongUseError` if it is not installed."""
    try:
        import openai
    except ImportError as error:
        raise WrongUseError(
            "The package 'openai' is not installed.", hint="Install it: pip install openai"
        ) from error
    return openai
