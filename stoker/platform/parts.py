"""Parts of a server: objects that resources and request handlers find by type."""

from collections.abc import Callable
from typing import Any, TypeVar, cast, get_type_hints

T = TypeVar("T")

Builder = Callable[["ServerParts"], Any]
"""Function that builds a part from other parts. Its return annotation is the type of the part."""


class MissingPartError(LookupError):
    """Raised for a part that no resource builds."""


class ServerParts:
    """Registry of parts. Each part is built at its first request, after the parts that it needs."""

    def __init__(self) -> None:
        self._parts: dict[type[Any], Any] = {}
        self._builders: dict[type[Any], Builder] = {}
        self._building: list[type[Any]] = []
        """Types of the parts that are being built. Each needs the next one."""

    def add(self, kind: type[T], part: T) -> None:
        """Registers a part. Replaces an earlier part of the same type."""
        self._parts[kind] = part

    def provide(self, *builders: Builder) -> None:
        """Registers the builders of parts."""
        for build in builders:
            self._builders[get_type_hints(build)["return"]] = build

    def get(self, kind: type[T]) -> T:
        """Returns the part of a type.

        Raises `MissingPartError` if no builder returns this type, or if its builder needs it.
        """
        try:
            return cast("T", self._parts[kind])
        except KeyError:
            return self._built(kind)

    def find(self, kind: type[T]) -> T | None:
        """Returns the part of a type. None if no builder returns this type."""
        return self.get(kind) if kind in self._parts or kind in self._builders else None

    def build_all(self) -> None:
        """Builds the remaining parts, so that a missing part is an error at the start."""
        for kind in self._builders:
            self.get(kind)

    def _built(self, kind: type[T]) -> T:
        names = [item.__name__ for item in self._building]
        if kind not in self._builders:
            needed = f", which {names[-1]} needs" if names else ""
            raise MissingPartError(f"No resource provides the part {kind.__name__}{needed}.")
        if kind in self._building:
            circle = " -> ".join([*names, kind.__name__])
            raise MissingPartError(f"Parts need each other in a circle: {circle}.")
        self._building.append(kind)
        try:
            part = self._builders[kind](self)
        finally:
            self._building.pop()
        self._parts[kind] = part
        return part
