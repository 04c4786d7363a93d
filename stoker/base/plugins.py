"""What other packages add to Stoker: objects that they name as entry points, in groups of ours.

Their code runs in the gateway and in replicas with all that these may do. Whoever installs such a
package trusts it like Stoker itself.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class PluginError(Exception):
    """What a package adds cannot be used; the message says why."""


def added(group: str, *kinds: type[T]) -> Sequence[T]:
    """The objects of a group, by their names' order. Raises `PluginError`.

    Args:
        kinds: the types that the objects may have.
    """
    # The command line imports this file, and hardly ever needs that.
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return [_loaded(point, kinds) for point in points]


def _loaded(point: "EntryPoint", kinds: tuple[type[T], ...]) -> T:
    package = f"the package {point.dist.name}" if point.dist else "a package"
    where = f"The entry point '{point.name} = {point.value}' of {package} (in '{point.group}')"
    try:
        found: Any = point.load()
    except Exception as error:
        raise PluginError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise PluginError(f"{where} is no {names}, but of the type {type(found).__name__}.")
    return found
