"""File readers for inspection: see `FileReader`."""

from collections.abc import Mapping
from pathlib import Path


class FolderReader:
    """Reader of an operator's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> Mapping[str, int]:
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self._folder)): path.stat().st_size for path in files}

    def read(self, path: str, offset: int, length: int) -> bytes:
        with (self._folder / path).open("rb") as file:
            file.seek(offset)
            return file.read(length)


class Paths:
    """Reader of files in different locations."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def sizes(self) -> Mapping[str, int]:
        return {name: path.stat().st_size for name, path in self._paths.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        with self._paths[path].open("rb") as file:
            file.seek(offset)
            return file.read(length)
