"""Checks at the end of a soak test: nothing lost, nothing left over, and a balanced ledger."""

import asyncio
import contextlib
import json
import sqlite3
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.soak.actors import Actor, World
from tools.soak.service import Service

QUIET_S = 90
HISTORY = frozenset(
    {
        "accounts",
        "alembic_version",
        "api_keys",
        "books",
        "holdings",
        "idempotency_records",
        "prices",
        "revisions",
        "transfers",
        "usage_counts",
    }
)
"""Tables with rows that outlive the objects that they describe."""
KEPT = (
    "lock",
    "stoker.db",
    "operator-key",
    "account-key",
    "server-secret",
    "server.json",
    "trials",
    "cache",
    "engines",
    "logs/host.log",
    "logs/conversions.log",
)
"""Name prefixes of files in the data folder that belong to no caller."""
MOST_GROWTH_MIB, MOST_DESCRIPTORS = 64, 8


@dataclass(frozen=True)
class Size:
    """Resources of the server's process, without its children."""

    at_s: float
    rss_mib: float
    descriptors: int
    """Number of open descriptors. Excludes the database, which keeps the maximum number of
    connections that were needed at once.
    """
    threads: int


def size_of(service: Service, started: float) -> Size | None:
    with contextlib.suppress(psutil.Error):
        server = psutil.Process(service.pid)
        with server.oneshot():
            rss = server.memory_info().rss / 2**20
            descriptors = _descriptors(service.pid)
            return Size(time.monotonic() - started, rss, descriptors, server.num_threads())
    return None


def _descriptors(pid: int) -> int:
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "/stoker.db" not in str(descriptor.readlink())
    return count


async def empty(world: World) -> None:
    """Deletes all objects of the account through the API."""
    actor = Actor(world, "end")
    actor.name = "end"
    async with actor.client:
        for path in ("/v1/agent", "/v1/videos", "/v1/files", "/v1/deployments"):
            await _delete_all(actor, path)
        await _delete_all(actor, "/v1/model-artifacts")
        keys = await actor.call("GET", "/v1/api-keys", params={"limit": 100})
        for api_key in keys.json()["data"]:
            if api_key["id"] != world.key_id:
                await actor.once("DELETE", f"/v1/api-keys/{api_key['id']}")


async def _delete_all(actor: Actor, path: str) -> None:
    for _ in range(200):
        page = await actor.call("GET", path, params={"limit": 100})
        rows = page.json()["data"]
        if not rows:
            return
        for row in rows:
            if upload := row.get("upload_id"):
                await actor.once("DELETE", f"{path}/{row['id']}/uploads/{upload}")
            await actor.call("DELETE", f"{path}/{row['id']}")
    actor.tally.lose(f"{path} never got empty")


async def quiet(service: Service) -> list[str]:
    """Returns the processes that remain after a while. Ignores the server, its engine host and the
    process kept for the next inspection.
    """
    deadline = time.monotonic() + QUIET_S
    remaining: list[str] = []
    while time.monotonic() < deadline:
        remaining = [process for process in map(_named, service.processes()) if process]
        for program in ("stoker serve", "stoker.replica.host", "stoker.inspection.process"):
            expected = next((process for process in remaining if program in process), None)
            if expected:
                remaining.remove(expected)
        if not remaining:
            break
        await asyncio.sleep(0.5)
    return remaining


def _named(process: psutil.Process) -> str:
    """Returns a process's id and command. Empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.pid} {' '.join(process.cmdline())}"
    return ""


def rows(database: Path) -> dict[str, int]:
    """Maps each table that should be empty to its number of rows."""
    with _reading(database) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            if name not in HISTORY and not name.startswith("sqlite_")
        ]
        counts = {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            for name in names
        }
    return {name: count for name, count in counts.items() if count}


def check_ledger(database: Path) -> list[str]:
    """Returns inconsistencies between books, transfers and charges."""
    wrong: list[str] = []
    with _reading(database) as connection:
        books = dict(connection.execute("SELECT name, microcredits FROM books"))
        moved: dict[str, int] = {}
        for source, target, amount in connection.execute(
            "SELECT source, target, microcredits FROM transfers"
        ):
            moved[source] = moved.get(source, 0) - amount
            moved[target] = moved.get(target, 0) + amount
        (charged,) = connection.execute("SELECT sum(charged_microcredits) FROM holdings").fetchone()
    if total := sum(books.values()):
        wrong.append(f"all books together hold {total} micro-credits, not 0")
    wrong += [
        f"book {name} holds {books.get(name, 0)}, its transfers come to {moved.get(name, 0)}"
        for name in {*books, *moved}
        if books.get(name, 0) != moved.get(name, 0)
    ]
    income = books.get("operator:memory", 0) + books.get("operator:storage", 0)
    if income != int(charged or 0):
        wrong.append(f"{income} micro-credits were taken in, {charged} charged")
    return wrong


def files(data_dir: Path) -> list[str]:
    """Returns the remaining files of deleted objects."""
    paths = [
        path.relative_to(data_dir)
        for path in data_dir.rglob("*")
        if not path.is_dir() or path.is_symlink()
    ]
    return sorted(str(path) for path in paths if not str(path).startswith(KEPT))


def growth_mib(sizes: Sequence[Size]) -> float:
    """Returns the growth of the server's memory in MiB, from the first tenth of the time to the
    last.
    """
    tenth = max(1, len(sizes) // 10)
    first = statistics.median(size.rss_mib for size in sizes[:tenth])
    return statistics.median(size.rss_mib for size in sizes[-tenth:]) - first


def compare(world: World, last: Size | None, fresh: Size | None, steady: Sequence[Size]) -> None:
    """Compares the server after the test with a fresh one."""
    if steady and growth_mib(steady) > MOST_GROWTH_MIB:
        world.tally.lose(f"the server's memory grew by {growth_mib(steady):.0f} MiB")
    if last and fresh and last.descriptors > fresh.descriptors + MOST_DESCRIPTORS:
        world.tally.lose(
            f"{last.descriptors} descriptors are open, {fresh.descriptors} of a fresh server"
        )


def tracebacks(log: str) -> Mapping[str, int]:
    """Counts the errors in the server's log."""
    counts: dict[str, int] = {}
    for line in log.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            entry = json.loads(line)
            if entry.get("level") in ("error", "critical"):
                name = f"{entry.get('logger')}: {entry.get('event')}"[:160]
                counts[name] = counts.get(name, 0) + 1
    return counts


@contextlib.contextmanager
def _reading(database: Path) -> Generator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        yield connection
    finally:
        connection.close()
