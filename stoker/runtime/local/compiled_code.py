"""Folders for code that engines compile for a GPU, one for each specification."""

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path


class CompiledCode:
    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir / "cache" / "compiled"

    def folder(self, spec_id: str) -> Path:
        return self._root / spec_id

    async def remove(self, spec_id: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self.folder(spec_id), ignore_errors=True)

    async def remove_others(self, kept: Collection[str]) -> None:
        """Removes the folders of all specifications except the passed ones."""
        names = await asyncio.to_thread(lambda: {path.name for path in self._root.glob("*")})
        for spec_id in names - {*kept}:
            await self.remove(spec_id)
