"""What batches of a model may cost, as it was measured."""

import hashlib
import json
from pathlib import Path
from typing import Any


class BatchBudgets:
    """Measured batch budgets, kept with the model they were measured for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def known(self, source: str, key: str) -> dict[str, int]:
        """Engine → budget, of the keys `ENGINE-{key}`."""
        return {
            name.removesuffix(f"-{key}"): budget
            for name, budget in self._read(source).items()
            if name.endswith(f"-{key}") and isinstance(budget, int) and 0 < budget <= 1_000_000
        }

    def keep(self, source: str, key: str, budget: int) -> None:
        self._path(source).write_text(json.dumps(self._read(source) | {key: budget}))

    def _read(self, source: str) -> dict[str, Any]:
        try:
            return json.loads(self._path(source).read_text())
        except (OSError, ValueError):
            return {}

    def _path(self, source: str) -> Path:
        return self._folder / f"batch-{hashlib.sha256(source.encode()).hexdigest()[:32]}.json"
