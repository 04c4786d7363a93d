"""Which runtime runs the deployments: the one that the setting `STOKER_RUNTIME` names.

A name is one of `RUNTIMES`, or `module:attribute` of a runtime that is installed beside the server.
Nothing else knows where a runtime is built, and none is imported but the one that is chosen.
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
"""Name → what builds it."""


class Builder(Protocol):
    """What a name stands for: a class or function that makes a runtime, which is not begun yet."""

    def __call__(
        self,
        settings: Settings,
        folders: ModelLocator,
        unfunded: Callable[[], Collection[str]],
    ) -> Runtime:
        """
        Args:
            unfunded: the accounts that cannot pay for anything to stay loaded.
        """
        ...


class UnknownRuntimeError(ValueError):
    """The message is for the operator."""


def builder(name: str) -> Builder:
    """What builds the runtime of this name.

    Raises `UnknownRuntimeError` where there is none, or it cannot be imported.
    """
    place = RUNTIMES.get(name, name)
    if ":" not in place:
        raise UnknownRuntimeError(
            f"There is no runtime '{name}'. There are: {', '.join(RUNTIMES)}; one of your own is "
            "given as 'module:attribute'."
        )
    try:
        found: object = pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownRuntimeError(
            f"The runtime '{name}' cannot be imported: {error}. It is a module and what builds a "
            f"runtime in it, as in '{RUNTIMES['local']}'."
        ) from error
    if not callable(found):
        raise UnknownRuntimeError(f"The runtime '{name}' is nothing that builds one.")
    return cast("Builder", found)
