"""Fields that take several types, told apart so that errors name the field and nothing else."""

from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel, Discriminator


def attribute(value: Any, name: str) -> Any:
    """A field of an object, given as JSON or as a model; None where there is none."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    return getattr(value, name, None) if isinstance(value, BaseModel) else None


def type_of(value: Any) -> Any:
    return attribute(value, "type")


def typed(value: Any) -> Any:
    """The type of an item, which messages may leave out."""
    return type_of(value) or ("message" if attribute(value, "role") else None)


def one_of(*kinds: str, must_be: str, kind: Callable[[Any], Any] = type_of) -> Discriminator:
    """Tells texts, lists and objects of several kinds apart by tags such as `<message>`.

    Pydantic writes a tag into the place of an error; those in angle brackets are left out again
    where the error is translated.
    """

    tags = {one: f"<{one}>" for one in kinds}

    def tag(value: Any) -> str | None:
        if isinstance(value, (str, list)):
            return f"<{type(cast('object', value)).__name__}>"
        given = kind(value)
        # Anything may be given.
        return tags.get(given, "<other>") if isinstance(given, str) else "<other>"

    return Discriminator(
        tag,
        custom_error_type="wrong_type",
        custom_error_message=f"must be {must_be}",
    )
