"""What `stoker doctor` checks of a fleet, from any of its machines: the database that all share,
the nodes, the secret and the folder of blobs. None of it writes to the database.
"""

import asyncio
import ipaddress
import platform
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
from obstore.exceptions import BaseError

import stoker
from stoker.base.config import Settings
from stoker.base.database_urls import without_password
from stoker.cli.verdicts import Check, Verdict
from stoker.runtime.nodes.leases import GONE_AFTER_S, NodeRecord, nodes_of
from stoker.runtime.nodes.probe import UnreachableError, Why, reach
from stoker.store import fitness, servers
from stoker.store.blobs import BlobLostError, Blobs, StoreUnavailableError, is_local, open_blobs
from stoker.store.blobs.probe import tried
from stoker.store.db import Database, Session
from stoker.store.fitness import Clocks, Condition, Schema
from stoker.store.secret import OtherSecretError, ServerSecret
from stoker.store.servers import Release

MOST_AHEAD_S = 2.0
"""Between a machine's clock and the database's."""
_AT_ONCE = 16
"""Nodes that are greeted at the same time."""
_RAY = "ray"
_DATABASE = "database"
_RELEASE_HINT = "Install the same release of Stoker on all machines of the fleet."
_SHARED_HINT = (
    "Servers and nodes need the same blobs: set STOKER_BLOB_URL on each machine to one bucket, or "
    "to a folder that all of them share."
)
_HINTS = {
    Why.NO_ANSWER: "Have firewalls let this machine to that port; or set STOKER_NODE_ADDRESS there "
    "to what others reach it by, and STOKER_NODE_PORT to a port that is open.",
    Why.ANOTHER: "Set STOKER_NODE_ADDRESS there to its own address, and have nothing between "
    "servers and nodes end TLS.",
    Why.REFUSED: "Have both use the same database and secret (STOKER_SECRET), and start the node "
    "again if the secret was changed.",
    Why.VERSION: _RELEASE_HINT,
}
_LOOPBACK_HINT = (
    "Its address is one that only its own machine reaches. If that is another machine than this, "
    "set STOKER_NODE_HOST=0.0.0.0 there, and STOKER_NODE_ADDRESS to what servers reach it by."
)


@dataclass(frozen=True, kw_only=True)
class _Node:
    record: NodeRecord
    round_trip_s: float | None
    """None: it was not reached, or not greeted."""
    why_not: UnreachableError | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is on another machine than this, as far as its address tells."""
        if _is_loopback(self.record.address):
            return self.why_not is not None
        return not _is_here(_host_of(self.record.address))


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What the database says."""

    condition: Condition
    clocks: Clocks
    secret: ServerSecret | None = None
    """What servers and nodes know each other by; None: this machine has not the same."""
    said_of_secret: Check | None = None
    servers: Sequence[Release] = ()
    nodes: Sequence[NodeRecord] = ()


async def checks(settings: Settings) -> list[Check]:
    """Of whoever shares a PostgreSQL. Those that need what another one found wrong are left out."""
    database = Database(settings.resolved_database_url, connections=1)
    try:
        async with fitness.looking(database) as session:
            seen = await _looked(settings, session)
    except Exception as error:
        # Whatever keeps it from answering: the network, the driver, the password, a missing right.
        return [_away(settings, error), *await _blobs(settings, [], others=0)]
    finally:
        await database.close()
    found = [_database(settings, seen), _schema(seen.condition), _clock(seen.clocks)]
    if seen.said_of_secret is None:
        return [*found, *await _blobs(settings, [], others=0)]
    nodes = await _greeted(seen.nodes, seen.secret)
    found += [seen.said_of_secret, _servers(seen.servers), *map(_release_of_server, seen.servers)]
    if not nodes and settings.runtime != "local":
        word = "join" if settings.runtime == _RAY else "host"
        hint = f"Start one with `stoker node {word}`, on each machine that is to run models."
        found.append(Check("nodes", Verdict.WARN, "none is at work", hint))
    for node in nodes:
        found.append(_release_of_node(settings, node.record))
        if seen.secret is not None:
            found.append(_reached(node))
    return [*found, *await _blobs(settings, nodes, others=len(seen.servers) + len(nodes))]


async def _looked(settings: Settings, session: Session) -> _Seen:
    condition, clocks = await fitness.condition(session), await fitness.clocks(session)
    if condition.schema is not Schema.CURRENT:
        return _Seen(condition=condition, clocks=clocks)
    secret, said = await _secret(settings, session)
    gone = clocks.database - timedelta(seconds=GONE_AFTER_S)
    return _Seen(
        condition=condition,
        clocks=clocks,
        secret=secret,
        said_of_secret=said,
        servers=await servers.releases(session),
        nodes=[one for one in await nodes_of(session) if one.seen_at > gone],
    )


# --- the database ---


def _away(settings: Settings, error: Exception) -> Check:
    hint = "Look at STOKER_DATABASE_URL, and whether this machine may reach it."
    why = str(error).partition("\n")[0] or type(error).__name__
    return Check(_DATABASE, Verdict.FAIL, f"{_place(settings)}: {why}", hint)


def _place(settings: Settings) -> str:
    shown = without_password(settings.resolved_database_url).partition("://")[2]
    return shown.rpartition("@")[2]


def _database(settings: Settings, seen: _Seen) -> Check:
    took = _ms(seen.clocks.round_trip_s)
    found = f"PostgreSQL {seen.condition.version} at {_place(settings)} answers in {took}"
    return Check(_DATABASE, Verdict.OK, found)


def _schema(condition: Condition) -> Check:
    name = "database: schema"
    match condition.schema:
        case Schema.NONE:
            return Check(name, Verdict.OK, "none yet: the first start makes it")
        case Schema.CURRENT:
            return Check(name, Verdict.OK, condition.revision)
        case Schema.OLDER:
            found = f"{condition.revision}, older than this release's {condition.wanted}"
            hint = "The next start migrates it: end all servers and nodes of the old release first."
            return Check(name, Verdict.WARN, found, hint)
        case Schema.NEWER:
            found = f"{condition.revision}, which this release ({condition.wanted}) does not know"
            hint = "Install the release here that has migrated it: this one is too old."
            return Check(name, Verdict.FAIL, found, hint)


def _clock(clocks: Clocks) -> Check:
    name, ahead_s = "database: clock", clocks.ahead_s
    apart = f"{abs(ahead_s):.2f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) <= MOST_AHEAD_S:
        return Check(name, Verdict.OK, apart)
    times = f"{_time(clocks.database)} there, {_time(clocks.here)} here"
    hint = "Have both machines set their clocks, as by NTP: leases of jobs are compared with them."
    return Check(name, Verdict.WARN, f"{apart}: {times}", hint)


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


async def _secret(settings: Settings, session: Session) -> tuple[ServerSecret | None, Check]:
    name = "secret"
    secret = ServerSecret(settings.data_dir.resolve(), given=settings.given_secret, waits=True)
    try:
        is_there = await secret.look(session)
    except OtherSecretError as error:
        return None, Check(name, Verdict.FAIL, "is not the database's", str(error))
    if not is_there:
        return None, Check(name, Verdict.OK, "none yet: the first server makes it")
    return secret, Check(name, Verdict.OK, "agrees with the database's")


# --- servers and nodes ---


def _servers(found: Sequence[Release]) -> Check:
    return Check("servers", Verdict.OK, f"{len(found)} at work" if found else "none is at work")


def _release_of_server(server: Release) -> Check:
    if not server.version:
        name = f"server {server.server_id}: release"
        found = "one that does not tell it yet, so an older one than here"
        return Check(name, Verdict.FAIL, found, _RELEASE_HINT)
    return _release(f"server {server.host} ({server.server_id})", server.version, server.python)


def _release_of_node(settings: Settings, node: NodeRecord) -> Check:
    name = f"node {node.name} ({node.id})"
    return _release(name, node.version, node.python, exactly=settings.runtime == _RAY)


async def _greeted(records: Sequence[NodeRecord], secret: ServerSecret | None) -> list[_Node]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def greet(record: NodeRecord) -> _Node:
        if secret is None:
            return _Node(record=record, round_trip_s=None)
        async with places:
            try:
                return _Node(record=record, round_trip_s=await reach(record, secret))
            except UnreachableError as error:
                return _Node(record=record, round_trip_s=None, why_not=error)

    return [*await asyncio.gather(*(greet(one) for one in records))]


def _release(whose: str, version: str, python: str, *, exactly: bool = False) -> Check:
    """
    Args:
        exactly: Python is to be the same to the patch version.
    """
    own_python = platform.python_version()
    name = f"{whose}: release"
    found = f"Stoker {version}, Python {python}"
    if version != stoker.__version__:
        return Check(name, Verdict.FAIL, f"{found}: here {stoker.__version__}", _RELEASE_HINT)
    if exactly and python != own_python:
        hint = "Ray needs the same Python everywhere, to the patch version: install it."
        return Check(name, Verdict.FAIL, f"{found}: here {own_python}", hint)
    if _minor(python) != _minor(own_python):
        hint = "Run the same minor version of Python on all machines of the fleet."
        return Check(name, Verdict.WARN, f"{found}: here {own_python}", hint)
    return Check(name, Verdict.OK, found)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _reached(node: _Node) -> Check:
    record = node.record
    name = f"node {record.name} ({record.id}): reach"
    if node.round_trip_s is not None:
        found = f"{record.address} answers in {_ms(node.round_trip_s)}"
        return Check(name, Verdict.OK, found)
    why = node.why_not
    found = f"{record.address}: {why or 'not tried'}"
    if why is None:
        return Check(name, Verdict.WARN, found)
    is_lost = why.why in (Why.NO_ANSWER, Why.ANOTHER)
    hint = _LOOPBACK_HINT if is_lost and _is_loopback(record.address) else _HINTS[why.why]
    return Check(name, Verdict.FAIL, found, hint)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_loopback(address: str) -> bool:
    host = _host_of(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_here(host: str) -> bool:
    """Whether a name or an address is this machine's."""
    own = {
        one.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for one in interface
    }
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(one in own or ipaddress.ip_address(one).is_loopback for one in found)


# --- blobs ---


async def _blobs(settings: Settings, nodes: Sequence[_Node], *, others: int) -> list[Check]:
    """Of a folder; a bucket has rows of its own.

    Args:
        others: servers and nodes that are at work.
    """
    name, url = "blob store", settings.blob_url
    if not is_local(url):
        return []
    if url is None:
        if not others:
            return []
        found = "STOKER_BLOB_URL is not set: they are in this machine's data folder"
        status = Verdict.FAIL if others > 1 else Verdict.WARN
        return [Check(name, status, found, _SHARED_HINT)]
    folder = Path(unquote(urlsplit(url).path))
    elsewhere = sum(one.is_elsewhere for one in nodes)
    if not await asyncio.to_thread(folder.is_dir):
        found, hint = f"{folder} is not there", "The first start makes it."
        return [
            Check(name, Verdict.FAIL, found, _SHARED_HINT)
            if others
            else Check(name, Verdict.OK, found, hint)
        ]
    tried_here = await _tried(open_blobs(url, folder, timeout_s=1.0), folder)
    if not elsewhere or tried_here.status is Verdict.FAIL:
        return [tried_here]
    found = f"{elsewhere} of {len(nodes)} nodes are on other machines, and {url} is a folder"
    return [tried_here, Check("blob store: shared", Verdict.WARN, found, _SHARED_HINT)]


async def _tried(blobs: Blobs, folder: Path) -> Check:
    begun = time.perf_counter()
    try:
        async for _ in tried(blobs):
            pass
    except (StoreUnavailableError, BlobLostError, BaseError, OSError) as error:
        found = f"{folder}: {str(error).partition(chr(10))[0]}"
        hint = "Give the user that runs Stoker the right to write there, and the disk room."
        return Check("blob store", Verdict.FAIL, found, hint)
    took = _ms(time.perf_counter() - begun)
    found = f"written, read, listed and deleted in {took}, in {folder}"
    return Check("blob store", Verdict.OK, found)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
