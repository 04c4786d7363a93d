"""Shows the progress of transfers on stderr: bytes, rate, time left, and files of a push."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli import output
from stoker.client.file_upload import PART_BYTES
from stoker.client.listening import PushState
from stoker.client.selection import Selection

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Several workers may report the same server. Print it once.
REPEAT_NOTE_S = 15.0


class PushProgress:
    """Progress bar of a push. `sent` counts bytes without retries."""

    def __init__(self, bar: "Progress", selection: Selection) -> None:
        self.sent = 0
        self._bar = bar
        self._total_files = len(selection.files)
        self._done: set[str] = set()
        self._noted: dict[str, float] = {}
        self._lock = threading.Lock()
        self._task: TaskID = bar.add_task(self._description(), total=selection.size)

    def already_there(self, count: int) -> None:
        """Counts bytes that are already on the server. They do not affect the rate."""
        self._bar.reset(self._task, completed=count)

    def advance(self, count: int) -> None:
        with self._lock:
            self.sent += count
        self._bar.advance(self._task, count)

    def file_done(self, path: str) -> None:
        with self._lock:
            self._done.add(path)
            description = self._description()
        self._bar.update(self._task, description=description)

    def note(self, message: str) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._noted.get(message, -REPEAT_NOTE_S) < REPEAT_NOTE_S:
                return
            self._noted[message] = now
        self._bar.console.print(output.printable(message), style="yellow", soft_wrap=True)

    def _description(self) -> str:
        return f"{len(self._done)}/{self._total_files} files"


@contextlib.contextmanager
def push_progress(selection: Selection) -> Generator[PushProgress, None, None]:
    with transfer_bar() as bar:
        yield PushProgress(bar, selection)


def transfer_bar() -> "Progress":
    """Returns a bar on stderr with bytes, rate and time left."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=output.console(stderr=True),
    )


@contextlib.contextmanager
def upload_progress(source: Path) -> Generator[Callable[[PushState], None]]:
    """Shows the progress of a file that is sent in parts."""
    if not source.is_file() or source.stat().st_size <= PART_BYTES:
        yield lambda _state: None
        return
    with transfer_bar() as bar:
        task = bar.add_task(output.printable(source.name), total=source.stat().st_size)

        def report(state: PushState) -> None:
            bar.update(task, completed=state.sent_bytes)
            if state.message:
                bar.console.print(output.printable(state.message), style="yellow", soft_wrap=True)

        yield report
