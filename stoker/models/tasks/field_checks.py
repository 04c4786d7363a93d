"""Checks of a request's fields: no field that would change the answer is accepted and ignored."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from stoker.models.tasks.known_fields import FIELDS, Endpoint, KnownField

_MOST_UNKNOWN = 64
"""Maximum number of unknown names of one object that are compared with the known names."""
_SHORTEST = 5
"""Minimum length, in characters, of a known name that is recognised with any letter wrong."""


def refusal(message: str, *place: str | int) -> ValidationError:
    """Returns the error that a validator of a whole object raises to name a field in it."""
    kind = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data("", [{"type": kind, "loc": place, "input": None}])


class CheckedFields(BaseModel):
    """Base of requests, and of objects in them, that ignore unknown fields.

    OpenAI's clients often send new fields, so a field that no server knows is ignored. A field of
    another endpoint, or of another server's protocol, is accepted only if it does not change the
    answer. A name that almost equals a field's name is rejected as a spelling error.
    """

    endpoint: ClassVar[Endpoint | None] = None
    """Endpoint with the fields to check. None means that the object is a part of a request."""
    checks_spelling: ClassVar[bool] = False
    """True if unknown names are compared with the known ones. Requests always do this."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_lost_field(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not (cls.endpoint or cls.checks_spelling):
            return cast("Any", data)
        body = cast("dict[str, Any]", data)
        names = _names(cls, cls.endpoint)
        unknown = [name for name in body if name not in names]
        if not unknown:
            return body
        dropped = _checked(body, unknown, names, cls.endpoint)
        if cls.model_config.get("extra") != "forbid":
            return body
        return {name: value for name, value in body.items() if name not in dropped}


def _names(model: type[BaseModel], endpoint: Endpoint | None) -> Collection[str]:
    """Returns the fields that a model accepts. The table may refuse an inherited field."""
    rows = _rows(endpoint)
    names = {field.alias or name for name, field in model.model_fields.items()}
    return {name for name in names if name not in rows or rows[name].effect != "refused"}


def _rows(endpoint: Endpoint | None) -> Mapping[str, KnownField]:
    return FIELDS[endpoint] if endpoint else {}


def _checked(
    given: Mapping[str, Any],
    unknown: Iterable[str],
    own: Collection[str],
    endpoint: Endpoint | None,
) -> set[str]:
    """Returns the unknown names that have no effect. Raises `ValidationError` for the others."""
    known = _rows(endpoint)
    accepted: set[str] = set()
    unheard: list[str] = []
    for name in unknown:
        row = known.get(name)
        if row is None:
            unheard.append(name)
        elif row.effect == "honoured" and given[name] not in (None, False):
            raise refusal("is a field of other endpoints and not of this one", name)
        elif row.accepts(given[name]):
            accepted.add(name)
        else:
            raise refusal(row.why, name)
    for name in unheard[:_MOST_UNKNOWN]:
        if meant := _misspelt(name, own) or _misspelt(name, known):
            raise refusal(f"is unknown: did you mean '{meant}'?", name)
    return accepted


def _misspelt(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that an unknown name probably misspells, or None."""
    plain = _plain(name)
    near = [candidate for candidate in known if _is_near(plain, _plain(candidate))]
    return min(near, key=lambda name: (_plain(name) != plain, name), default=None)


def _plain(name: str) -> str:
    return name[:64].replace("_", "").replace("-", "").lower()


def _is_near(name: str, known: str) -> bool:
    """Returns True if at most one edit (insert, delete, replace or swap letters) makes the names
    equal.
    """
    if name == known:
        return True
    if len(known) < _SHORTEST:
        return name == f"{known}s"
    if abs(len(name) - len(known)) > 1:
        return False
    at = next((i for i, (a, b) in enumerate(zip(name, known, strict=False)) if a != b), None)
    if at is None:
        return True
    rest, other = name[at:], known[at:]
    swapped = rest[:2] == other[:2][::-1] and rest[2:] == other[2:]
    return swapped or rest[1:] in (other[1:], other) or rest == other[1:]
