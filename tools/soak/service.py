"""Server of a soak test: started as a user would start it, with a disk that can fill up and a clock
that can jump.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import psutil

START_S = 120
STOP_S = 90
CLOCK = Path(__file__).parent / "clock.c"


class Service:
    """A server in a separate process."""

    def __init__(self, place: Path, **settings: str) -> None:
        self.data_dir = place / "data"
        self.lives = 0
        self.base_url = ""
        self.exits: list[int] = []
        """Exit codes of the requested stops."""
        self._place = place
        self._settings = settings
        self._log = place.parent / f"{place.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = place.parent / f"{place.name}.clock"
        self._library = _compiled(place.parent / "clock.so")

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def operator_key(self) -> str:
        return (self.data_dir / "operator-key").read_text().strip()

    @property
    def has_clock(self) -> bool:
        return self._library is not None

    def start(self) -> None:
        """Starts the server and returns once it listens. The first start uses any port, later ones
        the same port.
        """
        port = self.base_url.rpartition(":")[2] or "0"
        announced = self.data_dir / "server.json"
        announced.unlink(missing_ok=True)
        command = [sys.executable, "-m", "stoker", "serve", "--port", port]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self.data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._settings, **self._clock_settings()},
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                self.base_url = json.loads(announced.read_text())["base_url"]
                self.lives += 1
                return
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start:\n{self.log[-4000:]}")

    def kill(self) -> None:
        """Kills the server as a power cut would. Its replicas must end by themselves."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Stops the server as an operator would. Returns its exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -signal.SIGKILL
        self.exits.append(code)
        return code

    def processes(self) -> list[psutil.Process]:
        """Returns the server's process and all its descendants."""
        try:
            server = psutil.Process(self.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def set_clock(self, offset_s: int) -> None:
        """Shifts the wall clock of the server and its replicas by an offset in seconds."""
        # The processes map this file, so it is changed in one write.
        with self._clock.open("r+b") as file:
            file.write(offset_s.to_bytes(8, sys.byteorder, signed=True))

    def _clock_settings(self) -> dict[str, str]:
        if self._library is None:
            return {}
        if not self._clock.exists():
            self._clock.write_bytes(bytes(8))
        return {"LD_PRELOAD": str(self._library), "SOAK_CLOCK": str(self._clock)}


def _compiled(library: Path) -> Path | None:
    """Compiles the library of the adjustable clock. Returns None if no compiler is available."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(CLOCK), "-ldl"]
    subprocess.run(command, check=True)
    return library


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Generator[bool]:
    """Mounts a file system of `mib` MiB. If this process may not mount, uses a plain folder and
    yields False.
    """
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)
