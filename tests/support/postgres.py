"""A real PostgreSQL for the tests, started and stopped by its process id."""

import atexit
import contextlib
import functools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support import tiers

MISSING = "initdb was not found: install PostgreSQL's server (Debian: the package postgresql)"
_TIMEOUT_S = 60


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Yields the URL of an empty database. Skips the test if PostgreSQL is not installed."""
    with cluster() as server:
        yield server.url


@contextlib.contextmanager
def cluster() -> Iterator["Cluster"]:
    """Yields a running cluster that tests may stop and restart. Skips the test like `running`."""
    tiers.require(tiers.FLEET)
    initdb = _program("initdb")
    if initdb is None:
        pytest.skip(MISSING)
    with _folder() as root:
        instance = Cluster(root, initdb)
        instance.start()
        try:
            yield instance
        finally:
            instance.stop()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Yields an empty folder of PostgreSQL's user. PostgreSQL refuses to run as root, and its user
    cannot read below pytest's folder.
    """
    root = Path(tempfile.mkdtemp(prefix="stoker-pg-"))
    try:
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(root, account.pw_uid, account.pw_gid)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


_kept = contextlib.ExitStack()
atexit.register(_kept.close)


@functools.cache
def _initialised(initdb: str) -> Path:
    """Returns the data folder of a new cluster. Other clusters copy it, because `initdb` needs two
    seconds of a core.
    """
    data = _kept.enter_context(_folder()) / "data"
    options = ["--auth=trust", "--username=stoker", "--encoding=UTF8", "--locale=C.UTF-8"]
    subprocess.run(
        _as_postgres(initdb, *options, "--no-sync", f"--pgdata={data}"),
        check=True,
        capture_output=True,
        cwd="/",
        timeout=_TIMEOUT_S,
    )
    return data


def is_installed() -> bool:
    return _program("initdb") is not None


def _program(name: str) -> str | None:
    """Returns the path of a program of PostgreSQL's server. Debian keeps these out of PATH."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    path = shutil.which(name) or max(versions, default=None)
    return str(Path(path).resolve()) if path else None


def _as_postgres(*command: str) -> list[str]:
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else [*command]


class Cluster:
    def __init__(self, root: Path, initdb: str) -> None:
        self._root, self._data = root, root / "data"
        self._postgres = str(Path(initdb).with_name("postgres"))
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(["cp", "-a", _initialised(initdb), self._data], check=True)
        self._port = _free_port()
        self.url = f"postgresql+asyncpg://stoker@127.0.0.1:{self._port}/postgres"

    @property
    def folder(self) -> Path:
        """Folder of all of its files, including its log."""
        return self._root

    def start(self) -> None:
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                _as_postgres(
                    self._postgres,
                    *("-D", str(self._data), "-p", str(self._port), "-k", str(self._root)),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"),
                    # Many servers connect at once.
                    *("-c", "max_connections=400"),
                ),
                stdout=log,
                stderr=log,
                cwd="/",
            )
        try:
            _wait_ready(self._data / "postmaster.pid", self._process, self._root / "log")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops PostgreSQL and closes its clients' connections."""
        if self._process:
            _stop(self._data / "postmaster.pid", self._process)
            self._process = None


def signalled(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to the processes of PostgreSQL that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _free_port() -> int:
    """Returns a free port below the range that the kernel assigns to outgoing connections. It stays
    free until a process listens on it.
    """
    while True:
        # Tests seed `random`, so that all processes would try the same ports at once.
        port = 20_000 + secrets.randbelow(12_768)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _wait_ready(state: Path, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            # The last line is the postmaster's state. The file exists before it has any content.
            if state.read_text().split()[-1:] == ["ready"]:
                return
        time.sleep(0.02)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()[-4000:]}")


def _stop(state: Path, process: "subprocess.Popen[bytes]") -> None:
    """Stops the postmaster and its backends. The postmaster may be a child of `runuser`."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # PostgreSQL's "fast shutdown"
        os.kill(int(state.read_text().split("\n")[0]), signal.SIGINT)
    try:
        process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
