"""What has to hold at the end of a soak: nothing lost, nothing left over, the ledger balanced."""

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
"""Tables that outlive what they tell of."""
KEPT = (
    "lock",
    "stoker.db",
    "operator-key",
    "server-secret",
    "server.json",
    "trials",
    "cache",
    "engines",
    "logs/host.log",
    "logs/conversions.log",
)
"""In the data folder, beginnings of names: what is no caller's."""
MOST_GROWTH_MIB, MOST_DESCRIPTORS = 64, 8


@dataclass(frozen=True)
class Size:
    """Of the server's process alone."""

    at_s: float
    rss_mib: float
    descriptors: int
    """Without those of the database, which keeps as many connections as were needed at once."""
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
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "/stoker.db" not in str(one.readlink())
    return found


async def empty(world: World) -> None:
    """Delete all that the account has, as its owner would."""
    actor = Actor(world, "end")
    actor.name = "end"
    async with actor.client:
        for path in ("/v1/agent", "/v1/videos", "/v1/files", "/v1/deployments"):
            await _delete_all(actor, path)
        await _delete_all(actor, "/v1/model-artifacts")
        keys = await actor.call("GET", "/v1/api-keys", params={"limit": 100})
        for one in keys.json()["data"]:
            if one["id"] != world.key_id:
                await actor.once("DELETE", f"/v1/api-keys/{one['id']}")


async def _delete_all(actor: Actor, path: str) -> None:
    for _ in range(200):
        page = await actor.call("GET", path, params={"limit": 100})
        rows = page.json()["data"]
        if not rows:
            return
        for one in rows:
            if upload := one.get("upload_id"):
                await actor.once("DELETE", f"{path}/{one['id']}/uploads/{upload}")
            await actor.call("DELETE", f"{path}/{one['id']}")
    actor.tally.lose(f"{path} never got empty")


async def quiet(service: Service) -> list[str]:
    """Processes that are left after a while, beside the server, its host, and the one that is kept
    for the next inspection.
    """
    deadline = time.monotonic() + QUIET_S
    left: list[str] = []
    while time.monotonic() < deadline:
        left = [one for one in map(_named, service.processes()) if one]
        for kept in ("stoker serve", "stoker.replica.host", "stoker.inspection.process"):
            own = next((one for one in left if kept in one), None)
            if own:
                left.remove(own)
        if not left:
            break
        await asyncio.sleep(0.5)
    return left


def _named(process: psutil.Process) -> str:
    """Its number and command; empty: it is gone."""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.pid} {' '.join(process.cmdline())}"
    return ""


def rows(database: Path) -> dict[str, int]:
    """Table → rows, of those that are to be empty."""
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
    """What does not add up: books, transfers, and what was charged."""
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
    """Files that are left of what is gone."""
    found = [
        path.relative_to(data_dir)
        for path in data_dir.rglob("*")
        if not path.is_dir() or path.is_symlink()
    ]
    return sorted(str(path) for path in found if not str(path).startswith(KEPT))


def growth_mib(sizes: Sequence[Size]) -> float:
    """Of the server's memory, from the first tenth of a time to the last."""
    tenth = max(1, len(sizes) // 10)
    first = statistics.median(one.rss_mib for one in sizes[:tenth])
    return statistics.median(one.rss_mib for one in sizes[-tenth:]) - first


def compare(world: World, last: Size | None, fresh: Size | None, steady: Sequence[Size]) -> None:
    """The server after all of it, against one that has just begun."""
    if steady and growth_mib(steady) > MOST_GROWTH_MIB:
        world.tally.lose(f"the server's memory grew by {growth_mib(steady):.0f} MiB")
    if last and fresh and last.descriptors > fresh.descriptors + MOST_DESCRIPTORS:
        world.tally.lose(
            f"{last.descriptors} descriptors are open, {fresh.descriptors} of a fresh server"
        )


def tracebacks(log: str) -> Mapping[str, int]:
    """Errors in the server's log → how often."""
    found: dict[str, int] = {}
    for line in log.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            entry = json.loads(line)
            if entry.get("level") in ("error", "critical"):
                name = f"{entry.get('logger')}: {entry.get('event')}"[:160]
                found[name] = found.get(name, 0) + 1
    return found


@contextlib.contextmanager
def _reading(database: Path) -> Generator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        yield connection
    finally:
        connection.close()
