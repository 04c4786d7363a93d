"""Requests that may have one of several forms, each a model of its own."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

from pydantic import BaseModel, Discriminator, RootModel

Form = TypeVar("Form")


class FormsRequest(RootModel[Form], Generic[Form]):
    """Base of requests with several forms. The fields of a body determine its form.

    The members of a subclass's union have tags in angle brackets, such as `<texts>`, which errors
    leave out. So errors name the client's own fields.
    """

    forms: ClassVar[tuple[type[BaseModel], ...]]

    @property
    def model(self) -> str | None:
        """Model id of the deployment."""
        return getattr(self.root, "model", None)

    @classmethod
    def field_names(cls) -> Collection[str]:
        return {
            field.alias or name for form in cls.forms for name, field in form.model_fields.items()
        }


def by_fields(tags: Mapping[str, str], default: str, must_be: str) -> Discriminator:
    """Returns a discriminator by the fields of a body.

    Args:
        tags: maps a field to the tag of the form that has it.
        default: tag for a body without any of them.
        must_be: what a body must be, for an error about fields of several forms.
    """

    def tag(value: Any) -> str | None:
        names = cast("dict[str, Any]", value) if isinstance(value, dict) else ()
        found = {tag for name, tag in tags.items() if name in names}
        return default if not found else found.pop() if len(found) == 1 else None

    return Discriminator(
        tag, custom_error_type="wrong_form", custom_error_message=f"The body must be {must_be}"
    )
