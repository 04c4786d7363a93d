"""Selects the runtime that runs the deployments from the setting `STOKER_RUNTIME`.

A name is one of `RUNTIMES`, or `module:attribute` of a runtime that is installed next to the
server. No other module knows how to build a runtime. Only the selected runtime is imported.
"""

import pkgutil
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, cast

from stoker.base.config import Settings
from stoker.runtime.interface import ModelLocator, Runtime

RUNTIMES: Mapping[str, str] = {
    "local": "stoker.runtime.local.runtime:LocalRuntime",
    "nodes": "stoker.runtime.nodes.runtime:NodesRuntime",
    "ray": "stoker.runtime.nodes.runtime:with_ray",
}
"""Maps a name to the path of its builder."""


class Builder(Protocol):
    """Class or function that builds a runtime without starting it."""

    def __call__(
        self,
        settings: Settings,
        folders: ModelLocator,
        unfunded: Callable[[], Collection[str]],
    ) -> Runtime:
        """
        Args:
            unfunded: returns the accounts that cannot pay to keep replicas loaded.
        """
        ...


class UnknownRuntimeError(ValueError):
    """Raised for an unknown runtime. The message is for the operator."""


def builder(name: str) -> Builder:
    """Returns the builder of the runtime with this name.

    Raises `UnknownRuntimeError` if no such runtime exists or it cannot be imported.
    """
    place = RUNTIMES.get(name, name)
    if ":" not in place:
        raise UnknownRuntimeError(
            f"Unknown runtime '{name}'. Use one of {', '.join(RUNTIMES)}, or a custom runtime "
            "as 'module:attribute'."
        )
    try:
        candidate: object = pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownRuntimeError(
            f"The runtime '{name}' cannot be imported: {error}. Use a module and the attribute "
            f"that builds the runtime, as in '{RUNTIMES['local']}'."
        ) from error
    if not callable(candidate):
        raise UnknownRuntimeError(
            f"The runtime '{name}' is not callable, so it cannot build a runtime."
        )
    return cast("Builder", candidate)
