"""A PostgreSQL of the fleet's own, by the programs of the system."""

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

from stoker.client.errors import CliError
from stoker.cluster.child import Child

USER = "stoker"
"""Of the database."""
ACCOUNT = "postgres"
"""Of the machine: whom it runs as where we are root, as it refuses to run as that."""
INSTALL_HINT = (
    "Install PostgreSQL's server (Debian, Ubuntu: `apt-get install postgresql`), or name one that "
    "runs in STOKER_DATABASE_URL."
)
DEBIAN = Path("/usr/lib/postgresql")
START_S = 60.0
_INITDB_S = 120.0
_BEFORE_S = 30.0
"""How long one that an earlier start has left is waited for: it ends when that start does."""
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
            folder: for all that is its own; made where it is missing.
            connections: how many it takes at least.

        Raises `CliError` where PostgreSQL is not installed.
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
        """With the password, once it has been started."""
        password = (self._folder / "password").read_text().strip()
        return f"postgresql+asyncpg://{USER}:{password}@127.0.0.1:{self._port}/postgres"

    async def start(self, tell: Callable[[str], None]) -> None:
        """Raises `CliError`."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._hand_over(self._folder)
        # Its user may not be allowed to reach the folder by its path.
        self._descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        if not self._data.exists():
            tell("Making a database …")
            await self._make()
        await self._wait_for_another()
        tell("Starting PostgreSQL …")
        self._port = free_port()
        await self._run(
            [self._postgres, "-D", self._reached("data"), "-p", str(self._port)],
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", str(self._connections)),
            # Its log is not to repeat the row that breaks a constraint.
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
        """Its clients' connections end, too. Nothing that was committed is lost."""
        if self.child.is_running:
            self.child.signal(signal.SIGINT)  # its "fast shutdown"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.child.wait(), _FAST_S)
            # Its "immediate shutdown", after which it goes through its log at the next start.
            await self.child.end(signal.SIGQUIT, _IMMEDIATE_S)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _make(self) -> None:
        """A new database, whole or not at all."""
        password, unfinished = self._folder / "password", self._folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        descriptor = os.open(password, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        self._hand_over(password)
        given = ["--auth=scram-sha-256", f"--username={USER}", "--encoding=UTF8"]
        given += ["--locale=C.UTF-8", f"--pwfile={self._reached('password')}"]
        await self._run([self._initdb, *given, f"--pgdata={self._reached('data.new')}"])
        try:
            how = await asyncio.wait_for(self.child.wait(), _INITDB_S)
        except TimeoutError:
            await self.child.end(signal.SIGTERM, _IMMEDIATE_S)
            how = f"did not make a database within {_INITDB_S:.0f} s"
        if not (unfinished / "PG_VERSION").exists() or how != _SUCCESS:
            raise self.child.failed(how)
        unfinished.rename(self._data)

    async def _run(self, command: Sequence[str], *options: tuple[str, str]) -> None:
        given = [part for name, value in options for part in ("-c", f"{name}={value}")]
        await self.child.start(
            [*command, *given],
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            ends_by=signal.SIGINT,
            user=self._account.user,
            group=self._account.group,
            pass_fds=(self._descriptor,),
            cwd="/",
        )

    def _reached(self, name: str) -> str:
        """The path by which it reaches a file of its folder: no folder above is asked."""
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def _hand_over(self, path: Path) -> None:
        if self._account.user is not None and self._account.group is not None:
            os.chown(path, self._account.user, self._account.group)

    def _state(self) -> list[str]:
        """The lines of its own file about itself: its process id first, what it does last."""
        with contextlib.suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().split()
        return []

    def _is_ready(self) -> bool:
        found = self._state()
        # The file is made before anything is in it.
        return found[:1] == [str(self.child.pid)] and found[-1] == "ready"

    async def _wait_for_another(self) -> None:
        deadline = time.monotonic() + _BEFORE_S
        while (found := self._state()) and _is_postgres(found[0]):
            if time.monotonic() > deadline:
                raise CliError(
                    f"Another PostgreSQL runs on {self._data}: its process is {found[0]}."
                )
            await asyncio.sleep(_LOOK_S)


_SUCCESS = "has ended with exit code 0"


def _programs(data: Path) -> tuple[str, str]:
    """`initdb` and `postgres`, of the version that has made the database where there is one."""
    # Debian keeps them out of PATH.
    installed = {
        int(one.name): one / "bin" for one in DEBIAN.glob("[0-9]*") if one.name.isdecimal()
    }
    made_by = _text(data / "PG_VERSION")
    named = shutil.which("initdb")
    found = installed.get(int(made_by)) if made_by.isdecimal() else None
    if found is None and named:
        found = Path(named).resolve().parent
    if found is None and installed:
        found = installed[max(installed)]
    if found is None or not (found / "initdb").exists():
        raise CliError("PostgreSQL's server is not installed here.", hint=INSTALL_HINT)
    return str(found / "initdb"), str(found / "postgres")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _account() -> _Account:
    if os.geteuid() != 0:
        return _Account(None, None)
    try:
        found = pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise CliError(
            f"PostgreSQL does not run as root, and there is no user '{ACCOUNT}' here.",
            hint=INSTALL_HINT,
        ) from None
    return _Account(found.pw_uid, found.pw_gid)


def _is_postgres(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{int(pid)}/comm").read_text().strip() == "postgres"
    return False


def free_port() -> int:
    """Below those that the kernel gives to whoever connects: it stays free while nobody listens."""
    while True:
        port = random.randrange(20_000, 32_768)  # noqa: S311 - nothing depends on who guesses it
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
