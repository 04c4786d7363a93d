"""Where replicas write their output: one file a deployment."""

from pathlib import Path

LIMIT_BYTES = 8 * 1024 * 1024


class Logs:
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
                path.replace(path.with_suffix(".log.1"))
        except FileNotFoundError:
            pass
        return path
