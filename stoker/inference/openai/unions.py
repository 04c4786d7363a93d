"""Fields of several types, distinguished so that errors name only the field."""

from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel, Discriminator


def attribute(value: Any, name: str) -> Any:
    """Returns a field of an object (JSON or a model), or None if it is missing."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    return getattr(value, name, None) if isinstance(value, BaseModel) else None


def type_of(value: Any) -> Any:
    return attribute(value, "type")


def typed(value: Any) -> Any:
    """Returns the type of an item, which messages may omit."""
    return type_of(value) or ("message" if attribute(value, "role") else None)


def one_of(*kinds: str, must_be: str, kind: Callable[[Any], Any] = type_of) -> Discriminator:
    """Distinguishes texts, lists and objects of several kinds by tags such as `<message>`.

    Pydantic adds the tag to an error's location. Tags in angle brackets are removed when the error
    is translated.
    """

    tags = {name: f"<{name}>" for name in kinds}

    def tag(value: Any) -> str | None:
        if isinstance(value, (str, list)):
            return f"<{type(cast('object', value)).__name__}>"
        tag_name = kind(value)
        # The value may have any type.
        return tags.get(tag_name, "<other>") if isinstance(tag_name, str) else "<other>"

    return Discriminator(
        tag,
        custom_error_type="wrong_type",
        custom_error_message=f"must be {must_be}",
    )
