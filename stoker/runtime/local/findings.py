"""What replicas have calibrated of a model, kept for the next ones."""

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from stoker.wire.protocol import Sharing

_LIBRARIES = ("torch", "transformers")
"""Whose code decides what may share a pass."""


class Findings:
    """Measured batch budgets and memory of graphics devices, and what samples may share."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        versions = [importlib.metadata.version(name) for name in _LIBRARIES]
        self._versions = "-".join(versions)

    def budgets(self, source: str, key: str) -> dict[str, int]:
        """Engine → budget, of the keys `ENGINE-{key}`."""
        return {
            name.removesuffix(f"-{key}"): budget
            for name, budget in self._read(source).items()
            if name.endswith(f"-{key}") and isinstance(budget, int) and 0 < budget <= 1_000_000
        }

    def keep_budget(self, source: str, key: str, budget: int) -> None:
        self._keep(source, key, budget)

    def sharing(self, source: str, key: str) -> Sharing | None:
        """None where it was not looked for yet."""
        found = self._read(source).get(self._sharing_key(key))
        return Sharing(found) if found in list(Sharing) else None

    def keep_sharing(self, source: str, key: str, sharing: Sharing) -> None:
        if self.sharing(source, key) is not sharing:
            self._keep(source, self._sharing_key(key), sharing)

    def device_bytes(self, source: str, key: str) -> int | None:
        """What one replica needs of each of its graphics devices; None: it was not measured yet."""
        found = self._read(source).get(f"device-{key}-bytes")
        return found if isinstance(found, int) and 0 <= found < 1 << 50 else None

    def keep_device_bytes(self, source: str, key: str, size: int) -> None:
        self._keep(source, f"device-{key}-bytes", size)

    def forget(self, source: str) -> None:
        self._path(source).unlink(missing_ok=True)

    def _sharing_key(self, key: str) -> str:
        return f"sharing-{key}-{self._versions}"

    def _keep(self, source: str, key: str, value: int | str) -> None:
        self._path(source).write_text(json.dumps(self._read(source) | {key: value}))

    def _read(self, source: str) -> dict[str, Any]:
        try:
            return json.loads(self._path(source).read_text())
        except (OSError, ValueError):
            return {}

    def _path(self, source: str) -> Path:
        return self._folder / f"batch-{hashlib.sha256(source.encode()).hexdigest()[:32]}.json"
