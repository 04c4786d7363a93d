"""The fleet's own PostgreSQL, run by the system's programs."""

import asyncio
import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.client.errors import StokerError
from stoker.cluster.child import Child

USER = "stoker"
"""User of the database."""
ACCOUNT = "postgres"
"""User of the machine. PostgreSQL runs as this user if this process runs as root, because it
refuses to run as root.
"""
INSTALL_HINT = (
    "Install PostgreSQL's server (Debian, Ubuntu: `apt-get install postgresql`), or set "
    "STOKER_DATABASE_URL to one that runs."
)
DEBIAN = Path("/usr/lib/postgresql")
START_S = 60.0
_INITDB_S = 120.0
_BEFORE_S = 30.0
"""Timeout in seconds for a PostgreSQL of an earlier fleet. It ends together with that fleet."""
_LOOK_S = 0.02
_FAST_S, _IMMEDIATE_S = 20.0, 10.0


@dataclass(frozen=True)
class _Account:
    user: int | None
    group: int | None


class Postgres:
    def __init__(self, folder: Path, log: Path, connections: int) -> None:
        """
        Args:
            folder: the folder for all files of PostgreSQL. It is created if missing.
            connections: minimum of the connection limit.

        Raises `StokerError` if PostgreSQL is not installed.
        """
        self.child = Child("PostgreSQL", log)
        self._folder = folder
        self._data = folder / "data"
        self._connections = max(100, connections)
        self._initdb, self._postgres = _programs(self._data)
        self._account = _account()
        self._descriptor = -1
        self._port = 0

    @property
    def url(self) -> str:
        """URL with the password. Valid after the start."""
        password = (self._folder / "password").read_text().strip()
        return f"postgresql+asyncpg://{USER}:{password}@127.0.0.1:{self._port}/postgres"

    async def start(self, tell: Callable[[str], None]) -> None:
        """Creates the database if it is missing, and starts PostgreSQL. Raises `StokerError`."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._hand_over(self._folder)
        # The user of PostgreSQL may have no access to the folder by its path.
        self._descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        if not self._data.exists():
            tell("Creating a database …")
            await self._make()
        await self._wait_for_another()
        tell("Starting PostgreSQL …")
        self._port = free_port()
        await self._run(
            [self._postgres, "-D", self._reached("data"), "-p", str(self._port)],
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", str(self._connections)),
            # The log must not repeat a row that breaks a constraint.
            ("log_error_verbosity", "terse"),
        )
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if not self.child.is_running:
                raise self.child.failed(await self.child.wait())
            if time.monotonic() > deadline:
                raise self.child.failed(f"was not ready within {START_S:.0f} s")
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Stops PostgreSQL and closes its clients' connections. Committed data is not lost."""
        if self.child.is_running:
            self.child.signal(signal.SIGINT)  # PostgreSQL's "fast shutdown"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.child.wait(), _FAST_S)
            # PostgreSQL's "immediate shutdown", after which the next start replays its log.
            await self.child.end(signal.SIGQUIT, _IMMEDIATE_S)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _make(self) -> None:
        """Creates a new database. A failed attempt leaves no database."""
        password, unfinished = self._folder / "password", self._folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        descriptor = os.open(password, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        self._hand_over(password)
        options = ["--auth=scram-sha-256", f"--username={USER}", "--encoding=UTF8"]
        options += ["--locale=C.UTF-8", f"--pwfile={self._reached('password')}"]
        await self._run([self._initdb, *options, f"--pgdata={self._reached('data.new')}"])
        try:
            how = await asyncio.wait_for(self.child.wait(), _INITDB_S)
        except TimeoutError:
            await self.child.end(signal.SIGTERM, _IMMEDIATE_S)
            how = f"did not create a database within {_INITDB_S:.0f} s"
        if not (unfinished / "PG_VERSION").exists() or how != _SUCCESS:
            raise self.child.failed(how)
        unfinished.rename(self._data)

    async def _run(self, command: Sequence[str], *options: tuple[str, str]) -> None:
        arguments = [part for name, value in options for part in ("-c", f"{name}={value}")]
        await self.child.start(
            [*command, *arguments],
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            ends_by=signal.SIGINT,
            user=self._account.user,
            group=self._account.group,
            pass_fds=(self._descriptor,),
            cwd="/",
        )

    def _reached(self, name: str) -> str:
        """Returns the path by which PostgreSQL reaches a file of its folder. It needs no access to
        the folders above.
        """
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def _hand_over(self, path: Path) -> None:
        if self._account.user is not None and self._account.group is not None:
            os.chown(path, self._account.user, self._account.group)

    def _state(self) -> list[str]:
        """Returns the words of PostgreSQL's status file: first its process id, last its status."""
        with contextlib.suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().split()
        return []

    def _is_ready(self) -> bool:
        words = self._state()
        # The file exists before it has content.
        return words[:1] == [str(self.child.pid)] and words[-1] == "ready"

    async def _wait_for_another(self) -> None:
        deadline = time.monotonic() + _BEFORE_S
        while (words := self._state()) and _is_postgres(words[0]):
            if time.monotonic() > deadline:
                raise StokerError(f"Another PostgreSQL uses {self._data}: process {words[0]}.")
            await asyncio.sleep(_LOOK_S)


_SUCCESS = "has ended with exit code 0"


def _programs(data: Path) -> tuple[str, str]:
    """Returns the paths of `initdb` and `postgres`. Prefers the version that created the
    database.
    """
    # Debian does not add them to PATH.
    installed = {
        int(folder.name): folder / "bin"
        for folder in DEBIAN.glob("[0-9]*")
        if folder.name.isdecimal()
    }
    made_by = _text(data / "PG_VERSION")
    named = shutil.which("initdb")
    binaries = installed.get(int(made_by)) if made_by.isdecimal() else None
    if binaries is None and named:
        binaries = Path(named).resolve().parent
    if binaries is None and installed:
        binaries = installed[max(installed)]
    if binaries is None or not (binaries / "initdb").exists():
        raise StokerError("PostgreSQL's server is not installed here.", hint=INSTALL_HINT)
    return str(binaries / "initdb"), str(binaries / "postgres")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _account() -> _Account:
    if os.geteuid() != 0:
        return _Account(None, None)
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise StokerError(
            f"PostgreSQL cannot run as root, and this machine has no user '{ACCOUNT}'.",
            hint=INSTALL_HINT,
        ) from None
    return _Account(entry.pw_uid, entry.pw_gid)


def _is_postgres(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{int(pid)}/comm").read_text().strip() == "postgres"
    return False


def free_port() -> int:
    """Returns a free port below the kernel's range for outgoing connections, so that it stays free
    until a program listens.
    """
    while True:
        port = random.randrange(20_000, 32_768)  # noqa: S311 - nothing depends on who guesses it
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
