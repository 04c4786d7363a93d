"""Log files of the replicas: one file of limited size per deployment."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

log = logging.getLogger(__name__)

LIMIT_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 256 * 1024
"""Maximum bytes that are read from a file's end."""


class LogFiles:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.host, self.conversions = folder / "host.log", folder / "conversions.log"

    def path(self, deployment_id: str) -> Path:
        return self.folder / f"{deployment_id}.log"

    def append(self, deployment_id: str, line: str) -> None:
        """Appends a line with a timestamp in the replicas' format. Best effort."""
        now = datetime.now().astimezone()
        stamp = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03}"
        with contextlib.suppress(OSError), self.path(deployment_id).open("a") as file:
            file.write(f"{stamp} {line}\n")

    def is_long(self, path: Path) -> bool:
        try:
            return path.stat().st_size > LIMIT_BYTES
        except FileNotFoundError:
            return False

    def cut(self, path: Path) -> None:
        """Moves the end of a long file to a second file, replacing its old content, and empties the
        first.

        Writers continue with the same file, because all open it to append. A line written in
        between may be lost.
        """
        with path.open("r+b") as file:
            file.seek(-LIMIT_BYTES, os.SEEK_END)
            _older(path).write_bytes(file.read(LIMIT_BYTES))
            file.truncate(0)

    def long(self, deployments: Iterable[str]) -> list[Path]:
        """Returns the long files of these deployments, the engine host and the conversions."""
        paths = [self.path(deployment) for deployment in deployments]
        return [path for path in (*paths, self.host, self.conversions) if self.is_long(path)]

    async def cut_all(self, paths: Iterable[Path]) -> None:
        """Cuts files in a thread. Skips deleted files, and logs files that cannot be cut."""
        for path in paths:
            try:
                await asyncio.to_thread(self.cut, path)
            except FileNotFoundError:
                # The deployment was deleted just now.
                continue
            except OSError:
                log.exception("log file could not be truncated; retrying")

    def tail(self, deployment_id: str, lines: int) -> list[str]:
        """Returns the last lines of a deployment's file, oldest first. Empty if no file exists.

        If the last line is longer than the read bytes, its end is returned.
        """
        path = self.path(deployment_id)
        content, is_whole = _end(path, TAIL_BYTES)
        if is_whole:
            # The file may have just been cut.
            before, is_whole = _end(_older(path), TAIL_BYTES - len(content))
            content = before + content
        tail_lines = content.decode(errors="replace").splitlines()
        if not is_whole:
            # The first line may be incomplete.
            tail_lines = tail_lines[1:] or [f"…{line}" for line in tail_lines]
        return tail_lines[-lines:]

    def remove(self, deployment_id: str) -> None:
        path = self.path(deployment_id)
        for log_path in (path, _older(path)):
            # Remaining files are found by name and removed later (`sweep_strays`).
            with contextlib.suppress(OSError):
                log_path.unlink(missing_ok=True)

    def deployments(self) -> set[str]:
        """Returns the ids of the deployments that have files."""
        ours = {self.host.stem, self.conversions.stem}
        return {path.name.partition(".")[0] for path in self.folder.iterdir()} - ours


def _end(path: Path, most: int) -> tuple[bytes, bool]:
    """Returns the last bytes of a file, and True if they are the whole file. A missing file counts
    as empty.
    """
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - most)
            file.seek(start)
            return file.read(most), start == 0
    except FileNotFoundError:
        return b"", True


def _older(path: Path) -> Path:
    return path.with_suffix(".log.1")
