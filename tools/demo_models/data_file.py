"""Reads the sentences, templates and word lists of the generators from `data/`."""

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

FOLDER = Path(__file__).parent / "data"

Kind = TypeVar("Kind")


class DataFile:
    """A TOML file of `data/`. Raises OSError if it is missing."""

    def __init__(self, name: str) -> None:
        self._values = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))

    def read(self, key: str, kind: type[Kind]) -> Kind:
        """Returns a value as `kind`.

        Raises KeyError if the file has no such key, and `msgspec.ValidationError` if its value is
        not of that kind.
        """
        return msgspec.convert(self._values[key], kind)

    def entries(self, key: str) -> tuple[str, ...]:
        """Returns a list of texts. Raises the same errors as `read`."""
        return self.read(key, tuple[str, ...])

    def groups(self, key: str) -> dict[str, tuple[str, ...]]:
        """Returns lists of texts by name. Raises the same errors as `read`."""
        return self.read(key, dict[str, tuple[str, ...]])
