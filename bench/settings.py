"""Settings of Stoker in a benchmark that differ from a user's defaults."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from stoker.base.config import Settings
from stoker.registry.deployments.schemas import DeploymentCreate

_NAMING = ("model", "artifact_id", "source", "pipeline")
"""Fields of a deployment that identify its model and not how it runs."""


def variables(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as environment variables. Raises `ValueError` for an unknown setting."""
    _checked(Settings, given)
    return {
        f"STOKER_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in to_jsonable_python(dict(given)).items()
    }


def of_server(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, each with both values."""
    return _differing(Settings, given)


def of_deployment(wish: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a deployment request that differ from their defaults, each with both
    values.
    """
    fields = {name: value for name, value in wish.items() if name not in _NAMING}
    return _differing(DeploymentCreate, fields)


def _differing(kind: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    _checked(kind, given)
    defaults = {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for name, field in kind.model_fields.items()
        if field.get_default(call_default_factory=True) is not PydanticUndefined
    }
    values = to_jsonable_python(dict(given))
    return {
        name: {"value": value, "default": defaults.get(name)}
        for name, value in values.items()
        if value != defaults.get(name)
    }


def _checked(kind: type[BaseModel], given: Mapping[str, Any]) -> None:
    if unknown := set(given) - set(kind.model_fields):
        raise ValueError(f"there is no {', '.join(sorted(unknown))} in {kind.__name__}")
