"""Where replicas write their output: one file a deployment, which never grows long."""

import contextlib
import os
from datetime import datetime
from pathlib import Path

LIMIT_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 256 * 1024
"""As much is read of a file's end."""


class LogFiles:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.host, self.conversions = folder / "host.log", folder / "conversions.log"

    def path(self, deployment_id: str) -> Path:
        return self.folder / f"{deployment_id}.log"

    def append(self, deployment_id: str, line: str) -> None:
        """Append a line with the time, as replicas write theirs. Best effort."""
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
        """Keep the end of a long file beside it, in place of what was kept before, and empty it.

        Whoever writes to it goes on with the same file: all open it to append. A line written in
        between may be lost.
        """
        with path.open("r+b") as file:
            file.seek(-LIMIT_BYTES, os.SEEK_END)
            _older(path).write_bytes(file.read(LIMIT_BYTES))
            file.truncate(0)

    def tail(self, deployment_id: str, lines: int) -> list[str]:
        """The last lines of a deployment's file, oldest first; none where there is no file.

        Of a line longer than what is read there is its end, if nothing comes after it.
        """
        path = self.path(deployment_id)
        content, is_whole = _end(path, TAIL_BYTES)
        if is_whole:
            # It may have just been cut.
            before, is_whole = _end(_older(path), TAIL_BYTES - len(content))
            content = before + content
        found = content.decode(errors="replace").splitlines()
        if not is_whole:
            # Where reading began, a line may have been cut in two.
            found = found[1:] or [f"…{line}" for line in found]
        return found[-lines:]

    def remove(self, deployment_id: str) -> None:
        path = self.path(deployment_id)
        for one in (path, _older(path)):
            # Those that stay are found by their names, and removed later (`sweep_strays`).
            with contextlib.suppress(OSError):
                one.unlink(missing_ok=True)

    def deployments(self) -> set[str]:
        """Those that have files."""
        ours = {self.host.stem, self.conversions.stem}
        return {path.name.partition(".")[0] for path in self.folder.iterdir()} - ours


def _end(path: Path, most: int) -> tuple[bytes, bool]:
    """The last bytes of a file, and whether they are all of it; of none, nothing is all."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - most)
            file.seek(start)
            return file.read(most), start == 0
    except FileNotFoundError:
        return b"", True


def _older(path: Path) -> Path:
    return path.with_suffix(".log.1")
