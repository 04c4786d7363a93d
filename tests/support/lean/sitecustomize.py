"""Hides packages from the processes of a test's server, as on a machine that lacks them.

Python imports a module of this name at startup if the server's PYTHONPATH contains this folder.
PYTHONHIDDEN lists the packages: neither their modules nor their metadata can be found.
"""

import importlib.metadata
import os
import sys
from typing import Any

_HIDDEN = frozenset(os.environ.get("PYTHONHIDDEN", "").split())


class _Hiding:
    """Wraps an import hook, which then does not find the hidden packages."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in _HIDDEN:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


if _HIDDEN:
    _from_name = importlib.metadata.Distribution.from_name

    def _found(name: str) -> Any:
        if name in _HIDDEN:
            raise importlib.metadata.PackageNotFoundError(name)
        return _from_name(name)

    sys.meta_path[:] = [_Hiding(finder) for finder in sys.meta_path]  # type: ignore[misc]
    importlib.metadata.Distribution.from_name = staticmethod(_found)  # type: ignore[method-assign,assignment]
