"""Checks a fleet for `stoker doctor`: shared database, nodes, secret and blob folder.

Runs on any machine of the fleet. Never writes to the database.
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
from stoker.cli.verdicts import UPGRADE_HINT, DoctorCheck, DoctorVerdict
from stoker.runtime.nodes.leases import GONE_AFTER_S, NodeRecord, nodes_of
from stoker.runtime.nodes.probe import NodeUnreachableError, Why, reach
from stoker.store import fitness, servers
from stoker.store.blobs import BlobLostError, Blobs, StoreUnavailableError, is_local, open_blobs
from stoker.store.blobs.probe import tried
from stoker.store.db import Database, Session
from stoker.store.fitness import Clocks, Condition, Schema
from stoker.store.secret import OtherSecretError, ServerSecret
from stoker.store.servers import Release

MOST_AHEAD_S = 2.0
"""Maximum clock difference to the database, in seconds."""
_AT_ONCE = 16
"""Nodes contacted in parallel."""
_RAY = "ray"
_DATABASE = "database"
_RELEASE_HINT = "Install the same release of Stoker on all machines of the fleet."
_PROTOCOL_HINT = "Upgrade the older of the two. A release works with the one before and after it."
_SHARED_HINT = (
    "Servers and nodes need the same blobs. Set STOKER_BLOB_URL on each machine to one bucket, or "
    "to a shared folder."
)
_HINTS = {
    Why.NO_ANSWER: "Open that port to this machine in firewalls, or set STOKER_NODE_ADDRESS there "
    "to a reachable address, and STOKER_NODE_PORT to an open port.",
    Why.ANOTHER: "Set STOKER_NODE_ADDRESS on the node to its own address. "
    "Do not terminate TLS between servers and nodes.",
    Why.REFUSED: "Use the same database and secret (STOKER_SECRET) on both. Restart the node "
    "if the secret has changed.",
    Why.VERSION: _PROTOCOL_HINT,
}
_LOOPBACK_HINT = (
    "Only its own machine can reach this address. If the node runs on another machine, "
    "set STOKER_NODE_HOST=0.0.0.0 and STOKER_NODE_ADDRESS to a reachable address there."
)


@dataclass(frozen=True, kw_only=True)
class _Node:
    record: NodeRecord
    round_trip_s: float | None
    """Round trip time to the node in seconds. None if the node was not reached or not contacted."""
    why_not: NodeUnreachableError | None = None

    @property
    def is_elsewhere(self) -> bool:
        """True if the node is on another machine, judged by its address."""
        if _is_loopback(self.record.address):
            return self.why_not is not None
        return not _is_here(_host_of(self.record.address))


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """State read from the database."""

    condition: Condition
    clocks: Clocks
    secret: ServerSecret | None = None
    """Secret shared by servers and nodes. None: this machine has a different secret."""
    said_of_secret: DoctorCheck | None = None
    servers: Sequence[Release] = ()
    nodes: Sequence[NodeRecord] = ()


async def checks(settings: Settings) -> list[DoctorCheck]:
    """Returns the checks of a fleet. Checks that depend on a failed check are left out."""
    database = Database(settings.resolved_database_url, connections=1)
    try:
        async with fitness.looking(database) as session:
            state = await _looked(settings, session)
    except Exception as error:
        # Any cause: network, driver, password or missing permission.
        return [_away(settings, error), *await _blobs(settings, [], others=0)]
    finally:
        await database.close()
    results = [_database(settings, state), _schema(state.condition), _clock(state.clocks)]
    if state.said_of_secret is None:
        return [*results, *await _blobs(settings, [], others=0)]
    nodes = await _greeted(state.nodes, state.secret)
    results += [
        state.said_of_secret,
        _servers(state.servers),
        *map(_release_of_server, state.servers),
    ]
    if not nodes and settings.runtime != "local":
        word = "join" if settings.runtime == _RAY else "host"
        hint = f"Start one with `stoker node {word}` on each machine that should run models."
        results.append(DoctorCheck("nodes", DoctorVerdict.WARN, "none running", hint))
    for node in nodes:
        results.append(_release_of_node(settings, node.record))
        if state.secret is not None:
            results.append(_reached(node))
    return [*results, *await _blobs(settings, nodes, others=len(state.servers) + len(nodes))]


async def _looked(settings: Settings, session: Session) -> _Seen:
    condition, clocks = await fitness.condition(session), await fitness.clocks(session)
    if condition.schema not in (Schema.CURRENT, Schema.COMPATIBLE):
        return _Seen(condition=condition, clocks=clocks)
    secret, secret_check = await _secret(settings, session)
    gone = clocks.database - timedelta(seconds=GONE_AFTER_S)
    return _Seen(
        condition=condition,
        clocks=clocks,
        secret=secret,
        said_of_secret=secret_check,
        servers=await servers.releases(session),
        nodes=[node for node in await nodes_of(session) if node.seen_at > gone],
    )


# --- the database ---


def _away(settings: Settings, error: Exception) -> DoctorCheck:
    hint = "Check STOKER_DATABASE_URL, and whether this machine can reach the database."
    why = str(error).partition("\n")[0] or type(error).__name__
    return DoctorCheck(_DATABASE, DoctorVerdict.FAIL, f"{_place(settings)}: {why}", hint)


def _place(settings: Settings) -> str:
    shown = without_password(settings.resolved_database_url).partition("://")[2]
    return shown.rpartition("@")[2]


def _database(settings: Settings, seen: _Seen) -> DoctorCheck:
    took = _ms(seen.clocks.round_trip_s)
    message = f"PostgreSQL {seen.condition.version} at {_place(settings)} answers in {took}"
    return DoctorCheck(_DATABASE, DoctorVerdict.OK, message)


def _schema(condition: Condition) -> DoctorCheck:
    name = "database: schema"
    match condition.schema:
        case Schema.NONE:
            return DoctorCheck(name, DoctorVerdict.OK, "none yet; created at the first start")
        case Schema.CURRENT:
            return DoctorCheck(name, DoctorVerdict.OK, condition.revision)
        case Schema.OLDER:
            message = f"{condition.revision}, older than this release's {condition.wanted}"
            hint = "The next start migrates it. Servers and nodes may run meanwhile."
            if condition.compatible_from:
                hint = (
                    "The next start migrates it. First stop servers and nodes of releases with a "
                    f"schema before {condition.compatible_from}."
                )
            return DoctorCheck(name, DoctorVerdict.WARN, message, hint)
        case Schema.COMPATIBLE:
            message = f"{condition.revision}, newer than this release's {condition.wanted}"
            hint = "This release can use it. Finish the upgrade on this machine, too."
            return DoctorCheck(name, DoctorVerdict.WARN, message, hint)
        case Schema.NEWER:
            message = f"{condition.revision}, newer than this release's {condition.wanted}"
            return DoctorCheck(name, DoctorVerdict.FAIL, message, condition.problem)


def _clock(clocks: Clocks) -> DoctorCheck:
    name, ahead_s = "database: clock", clocks.ahead_s
    apart = f"{abs(ahead_s):.2f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) <= MOST_AHEAD_S:
        return DoctorCheck(name, DoctorVerdict.OK, apart)
    times = f"{_time(clocks.database)} there, {_time(clocks.here)} here"
    hint = "Synchronize both clocks, for example with NTP. Job leases depend on them."
    return DoctorCheck(name, DoctorVerdict.WARN, f"{apart}: {times}", hint)


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


async def _secret(settings: Settings, session: Session) -> tuple[ServerSecret | None, DoctorCheck]:
    name = "secret"
    secret = ServerSecret(settings.data_dir.resolve(), given=settings.given_secret, waits=True)
    try:
        is_there = await secret.look(session)
    except OtherSecretError as error:
        return None, DoctorCheck(
            name, DoctorVerdict.FAIL, "differs from the database's", str(error)
        )
    if not is_there:
        return None, DoctorCheck(name, DoctorVerdict.OK, "none yet; created by the first server")
    return secret, DoctorCheck(name, DoctorVerdict.OK, "matches the database")


# --- servers and nodes ---


def _servers(found: Sequence[Release]) -> DoctorCheck:
    return DoctorCheck(
        "servers", DoctorVerdict.OK, f"{len(found)} running" if found else "none running"
    )


def _release_of_server(server: Release) -> DoctorCheck:
    if not server.version:
        name = f"server {server.server_id}: release"
        message = "unknown, so older than here"
        return DoctorCheck(name, DoctorVerdict.FAIL, message, _RELEASE_HINT)
    return _release(f"server {server.host} ({server.server_id})", server.version, server.python)


def _release_of_node(settings: Settings, node: NodeRecord) -> DoctorCheck:
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
            except NodeUnreachableError as error:
                return _Node(record=record, round_trip_s=None, why_not=error)

    return [*await asyncio.gather(*(greet(node_record) for node_record in records))]


def _release(whose: str, version: str, python: str, *, exactly: bool = False) -> DoctorCheck:
    """
    Args:
        exactly: True if Python must match to the patch version.
    """
    own_python = platform.python_version()
    name = f"{whose}: release"
    message = f"Stoker {version}, Python {python}"
    if version != stoker.__version__:
        return DoctorCheck(
            name, DoctorVerdict.WARN, f"{message}, but {stoker.__version__} here", UPGRADE_HINT
        )
    if exactly and python != own_python:
        hint = "Ray needs the same Python patch version on all machines. Install it."
        return DoctorCheck(name, DoctorVerdict.FAIL, f"{message}, but {own_python} here", hint)
    if _minor(python) != _minor(own_python):
        hint = "Use the same minor version of Python on all machines of the fleet."
        return DoctorCheck(name, DoctorVerdict.WARN, f"{message}, but {own_python} here", hint)
    return DoctorCheck(name, DoctorVerdict.OK, message)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _reached(node: _Node) -> DoctorCheck:
    record = node.record
    name = f"node {record.name} ({record.id}): reach"
    if node.round_trip_s is not None:
        message = f"{record.address} answers in {_ms(node.round_trip_s)}"
        return DoctorCheck(name, DoctorVerdict.OK, message)
    why = node.why_not
    message = f"{record.address}: {why or 'not contacted'}"
    if why is None:
        return DoctorCheck(name, DoctorVerdict.WARN, message)
    is_lost = why.why in (Why.NO_ANSWER, Why.ANOTHER)
    hint = _LOOPBACK_HINT if is_lost and _is_loopback(record.address) else _HINTS[why.why]
    return DoctorCheck(name, DoctorVerdict.FAIL, message, hint)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_loopback(address: str) -> bool:
    host = _host_of(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_here(host: str) -> bool:
    """True if a name or address belongs to this machine."""
    local_addresses = {
        item.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for item in interface
    }
    try:
        addresses = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(
        item in local_addresses or ipaddress.ip_address(item).is_loopback for item in addresses
    )


# --- blobs ---


async def _blobs(settings: Settings, nodes: Sequence[_Node], *, others: int) -> list[DoctorCheck]:
    """Checks a blob folder. Buckets are checked by `stoker doctor` itself.

    Args:
        others: number of running servers and nodes.
    """
    name, url = "blob store", settings.blob_url
    if not is_local(url):
        return []
    if url is None:
        if not others:
            return []
        message = "STOKER_BLOB_URL is not set: blobs are in this machine's data folder"
        status = DoctorVerdict.FAIL if others > 1 else DoctorVerdict.WARN
        return [DoctorCheck(name, status, message, _SHARED_HINT)]
    folder = Path(unquote(urlsplit(url).path))
    elsewhere = sum(node.is_elsewhere for node in nodes)
    if not await asyncio.to_thread(folder.is_dir):
        message, hint = f"{folder} does not exist", "It is created at the first start."
        return [
            DoctorCheck(name, DoctorVerdict.FAIL, message, _SHARED_HINT)
            if others
            else DoctorCheck(name, DoctorVerdict.OK, message, hint)
        ]
    tried_here = await _tried(open_blobs(url, folder, timeout_s=1.0), folder)
    if not elsewhere or tried_here.status is DoctorVerdict.FAIL:
        return [tried_here]
    message = f"{elsewhere} of {len(nodes)} nodes are on other machines, and {url} is a folder"
    return [
        tried_here,
        DoctorCheck("blob store: shared", DoctorVerdict.WARN, message, _SHARED_HINT),
    ]


async def _tried(blobs: Blobs, folder: Path) -> DoctorCheck:
    begun = time.perf_counter()
    try:
        async for _ in tried(blobs):
            pass
    except (StoreUnavailableError, BlobLostError, BaseError, OSError) as error:
        message = f"{folder}: {str(error).partition(chr(10))[0]}"
        hint = "Give the user that runs Stoker write permission and disk space there."
        return DoctorCheck("blob store", DoctorVerdict.FAIL, message, hint)
    took = _ms(time.perf_counter() - begun)
    message = f"written, read, listed and deleted in {took}, in {folder}"
    return DoctorCheck("blob store", DoctorVerdict.OK, message)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
