"""Calibrations of a model by its replicas, stored for later replicas.

Writes are best effort: a full disk costs later replicas a calibration, and affects nothing else.
Values that could not be written stay in memory and are written later.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
from pathlib import Path
from typing import Any, cast

import msgspec

from stoker.wire.passes import MOST_LOST
from stoker.wire.protocol import ChosenPrecision, Sharing

log = logging.getLogger(__name__)

_LIBRARIES = ("torch", "transformers")
"""Libraries with code that decides which samples may share a pass, and how numbers are rounded."""


_CONTEXTS = "contexts of devices"
"""Name of the file's content, in place of a model's source."""
_CONTENT = "content"
"""Key of the digest of a model's files, among its values."""


class Measurements:
    """Batch budgets, GPU memory, batch sharing, precision and lost recordings of each model."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        versions = [importlib.metadata.version(name) for name in _LIBRARIES]
        self._versions = "-".join(versions)
        self._unwritten: dict[str, dict[str, int | str]] = {}
        """Maps a source to the values that its file lacks."""
        self._contents: dict[Path, str] = {}
        """Maps a model's measurements to the digest of the model's files."""
        for path in folder.glob("batch-*.json"):
            if content := _stored(path).get(_CONTENT):
                self._contents[path] = str(content)

    def budgets(self, source: str, key: str) -> dict[str, int]:
        """Maps each engine to its budget, from the keys `ENGINE-{key}`."""
        return {
            name.removesuffix(f"-{key}"): budget
            for name, budget in self._read(source).items()
            if name.endswith(f"-{key}") and isinstance(budget, int) and 0 < budget <= 1_000_000
        }

    def keep_budget(self, source: str, key: str, budget: int) -> None:
        self._keep(source, key, budget)

    def sharing(self, source: str, key: str) -> Sharing | None:
        """Returns the batch sharing. None if it was not determined yet."""
        value = self._read(source).get(self._sharing_key(key))
        return Sharing(value) if value in list(Sharing) else None

    def keep_sharing(self, source: str, key: str, sharing: Sharing) -> None:
        if self.sharing(source, key) is not sharing:
            self._keep(source, self._sharing_key(key), sharing)

    def precision(self, source: str, key: str) -> ChosenPrecision | None:
        """Returns the precision of an `auto` dtype. None if it was not chosen yet."""
        value = self._read(source).get(self._precision_key(key))
        try:
            return msgspec.json.decode(value, type=ChosenPrecision) if value else None
        except (TypeError, msgspec.MsgspecError):
            return None

    def keep_precision(self, source: str, key: str, precision: ChosenPrecision) -> None:
        if self.precision(source, key) != precision:
            text = msgspec.json.encode(precision).decode()
            self._keep(source, self._precision_key(key), text)

    def lost_recordings(self, source: str, key: str) -> list[str]:
        """Returns the names of passes that ended a replica while they were recorded."""
        value = self._read(source).get(self._recordings_key(key))
        try:
            return msgspec.json.decode(value, type=list[str]) if value else []
        except (TypeError, msgspec.MsgspecError):
            return []

    def keep_lost_recording(self, source: str, key: str, name: str) -> int:
        """Adds the name of a pass that ended a replica. Returns the number of names."""
        names = list(dict.fromkeys([*self.lost_recordings(source, key), name]))[-MOST_LOST:]
        text = msgspec.json.encode(names).decode()
        self._keep(source, self._recordings_key(key), text)
        return len(names)

    def device_bytes(self, source: str, key: str) -> int | None:
        """Returns the bytes that torch needs of each GPU of one replica. None if not measured
        yet.
        """
        size = self._read(source).get(f"device-{key}-torch-bytes")
        return size if isinstance(size, int) and 0 <= size < 1 << 50 else None

    def keep_device_bytes(self, source: str, key: str, size: int) -> None:
        self._keep(source, f"device-{key}-torch-bytes", size)

    def context_bytes(self, kind: str) -> int | None:
        """Returns the bytes of CUDA's context in a process. None if not measured yet.

        Args:
            kind: `Device.kind`. Empty means the most of all kinds that were measured here.
        """
        known = self._read(_CONTEXTS)
        sizes = [
            size
            for name, size in known.items()
            if kind in ("", name) and isinstance(size, int) and 0 < size < 1 << 40
        ]
        return max(sizes, default=None)

    def keep_context_bytes(self, kind: str, size: int) -> None:
        self._keep(_CONTEXTS, kind, size)

    def adopt(self, source: str, content: str) -> None:
        """Copies the values that a model lacks from models with the same files.

        Args:
            content: digest that models with the same files share.
        """
        own, path = self._read(source), self._path(source)
        values: dict[str, Any] = {_CONTENT: content}
        for other, known in self._contents.items():
            if known == content and other != path:
                values |= _stored(other)
        self._contents[path] = content
        if lacking := {key: value for key, value in values.items() if key not in own}:
            self._unwritten.setdefault(source, {}).update(lacking)
            self._write(source)

    def forget(self, source: str) -> None:
        self._unwritten.pop(source, None)
        self._contents.pop(self._path(source), None)
        try:
            self._path(source).unlink(missing_ok=True)
        except OSError:
            log.warning("model's measurements could not be deleted", exc_info=True)

    def write_unwritten(self) -> None:
        """Writes the values that could not be written before."""
        for source in [*self._unwritten]:
            self._write(source)

    def _sharing_key(self, key: str) -> str:
        return f"batch-sharing-{key}-{self._versions}"

    def _precision_key(self, key: str) -> str:
        return f"precision-{key}-{self._versions}"

    def _recordings_key(self, key: str) -> str:
        return f"lost-recordings-{key}-{self._versions}"

    def _keep(self, source: str, key: str, value: int | str) -> None:
        """Stores a value. Never raises, because callers are in the middle of a change of state."""
        is_first = source not in self._unwritten
        self._unwritten.setdefault(source, {})[key] = value
        if not self._write(source) and is_first:
            log.warning("model's measurements could not be written; retrying later")

    def _write(self, source: str) -> bool:
        path = self._path(source)
        # Write atomically, so that a full disk does not destroy the old file.
        part = path.with_suffix(".part")
        try:
            part.write_text(json.dumps(self._read(source)))
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            return False
        self._unwritten.pop(source, None)
        return True

    def _read(self, source: str) -> dict[str, Any]:
        return _stored(self._path(source)) | self._unwritten.get(source, {})

    def _path(self, source: str) -> Path:
        return self._folder / f"batch-{hashlib.sha256(source.encode()).hexdigest()[:32]}.json"


def _stored(path: Path) -> dict[str, Any]:
    """Returns a file's values. Empty if the file cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        stored = json.loads(path.read_text())
        if isinstance(stored, dict):
            return cast("dict[str, Any]", stored)
    return {}
