"""Where replicas write their output: one file a deployment."""

import os
from pathlib import Path

LIMIT_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 256 * 1024
"""As much is read of a file's end."""


class LogFiles:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def path(self, deployment_id: str) -> Path:
        return self.folder / f"{deployment_id}.log"

    def rotated(self, deployment_id: str) -> Path:
        """The file for a replica to come; what was long is kept beside it, once."""
        path = self.path(deployment_id)
        try:
            if path.stat().st_size > LIMIT_BYTES:
                path.replace(_older(path))
        except FileNotFoundError:
            pass
        return path

    def tail(self, deployment_id: str, lines: int) -> list[str]:
        """The last lines of a deployment's file, oldest first; none where there is no file."""
        try:
            with self.path(deployment_id).open("rb") as file:
                start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
                file.seek(start)
                found = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        # The first line may have been cut in two by where reading began.
        return (found[1:] if start else found)[-lines:]

    def remove(self, deployment_id: str) -> None:
        path = self.path(deployment_id)
        for one in (path, _older(path)):
            one.unlink(missing_ok=True)


def _older(path: Path) -> Path:
    return path.with_suffix(".log.1")
