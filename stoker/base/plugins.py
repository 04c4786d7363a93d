"""Plugins: objects that other packages add to Stoker as entry points in Stoker's groups.

Their code runs in the gateway and in replicas, with all rights of these processes. Install only
packages that you trust as much as Stoker itself.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class PluginError(Exception):
    """Plugin that cannot be used. The message says why."""


def added(group: str, *kinds: type[T]) -> Sequence[T]:
    """Returns the plugins of a group, sorted by name. Raises `PluginError`.

    Args:
        kinds: types that the objects may have.
    """
    # Imported here because the command line imports this file and rarely needs it.
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return [_loaded(point, kinds) for point in points]


def _loaded(point: "EntryPoint", kinds: tuple[type[T], ...]) -> T:
    package = f"the package {point.dist.name}" if point.dist else "a package"
    where = f"The entry point '{point.name} = {point.value}' of {package} (in '{point.group}')"
    try:
        loaded: Any = point.load()
    except Exception as error:
        raise PluginError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise PluginError(f"{where} must be of type {names}, not {type(loaded).__name__}.")
    return loaded
