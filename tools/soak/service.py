"""The server of a soak: started as its user would, on a disk and with a clock that can go wrong."""

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
    """A server in a process of its own."""

    def __init__(self, place: Path, **settings: str) -> None:
        self.data_dir = place / "data"
        self.lives = 0
        self.base_url = ""
        self.exits: list[int] = []
        """Codes of the ends that were asked for."""
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
        """Returns once it listens: at the first start on any port, then on the same one."""
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
        """As a power cut would; its replicas have to go by themselves."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """As its operator would; the exit code."""
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
        """The server's and all below it."""
        try:
            server = psutil.Process(self.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def set_clock(self, offset_s: int) -> None:
        """Have the wall clock of the server and its replicas be off by so much."""
        # The file that is mapped, in one write.
        with self._clock.open("r+b") as file:
            file.write(offset_s.to_bytes(8, sys.byteorder, signed=True))

    def _clock_settings(self) -> dict[str, str]:
        if self._library is None:
            return {}
        if not self._clock.exists():
            self._clock.write_bytes(bytes(8))
        return {"LD_PRELOAD": str(self._library), "SOAK_CLOCK": str(self._clock)}


def _compiled(library: Path) -> Path | None:
    """The clock that can be set; None where nothing compiles it."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(CLOCK), "-ldl"]
    subprocess.run(command, check=True)
    return library


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Generator[bool]:
    """A file system of that size where this process may mount one; else a plain folder."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)
