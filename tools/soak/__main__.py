"""`python -m tools.soak --minutes 30 --seed 1`: exit code 0 if nothing was lost."""

import argparse
import asyncio
import json
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from tools.soak import checks
from tools.soak.actors import MODELS, Actor, Keys, Rude, Uploader, World
from tools.soak.callers import Caller, Changer, Filmer, Runner, Streamer
from tools.soak.faults import Faults
from tools.soak.report import Measurements, document, written
from tools.soak.service import Service, small_disk
from tools.soak.tally import Tally

DISK_MIB, BUDGET_MIB = 700, 3000
SETTINGS = {
    # Small enough that models evict one another all the time.
    "STOKER_MEMORY_BUDGET_MIB": str(BUDGET_MIB),
    "STOKER_REPLICA_THREADS": "1",
    "STOKER_JOB_LEASE_S": "5",
    "STOKER_STALL_TIMEOUT_S": "20",
    "STOKER_HEARTBEAT_TIMEOUT_S": "8",
    "STOKER_UPLOAD_PART_MIB": "1",
    "STOKER_LOG_LEVEL": "warning",
}
ACTORS: tuple[type[Actor], ...] = (
    Uploader,
    Keys,
    Rude,
    Caller,
    Caller,
    Streamer,
    Streamer,
    Filmer,
    Runner,
    Changer,
)
SHARE_WITH_SERVERS_ENDED = 0.66
"""Share of the time in which faults end the server. In the remaining time, one server keeps running
so that its memory can be observed.
"""


async def main() -> int:
    arguments = _arguments()
    if arguments.report:
        # Fails now rather than after half an hour.
        Path(arguments.report).parent.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    measurements = Measurements(arguments.seed, arguments.minutes, _machine())
    with tempfile.TemporaryDirectory(prefix="stoker-soak-") as folder:
        place = Path(folder) / "disk"
        with small_disk(place, DISK_MIB) as measurements.small_disk:
            service = Service(place, **SETTINGS)
            measurements.own_clock = service.has_clock
            service.start()
            try:
                await _soak(arguments, service, place, measurements, tally)
            finally:
                service.kill()
                if arguments.keep_log:
                    Path(arguments.keep_log).write_text(service.log)
        measurements.errors = checks.tracebacks(service.log)
    report = written(measurements, tally)
    if arguments.report:
        path = Path(arguments.report)
        path.write_text(report)
        path.with_suffix(".json").write_text(
            json.dumps(document(measurements, tally), indent=1) + "\n"
        )
    print(report)
    return 1 if tally.lost else 0


async def _soak(
    given: argparse.Namespace, service: Service, place: Path, found: Measurements, tally: Tally
) -> None:
    world = await _world(service, tally)
    _say("pushing the models …")
    await _deploy_all(world)
    actors = [kind(world, f"{given.seed} {number}") for number, kind in enumerate(ACTORS)]
    acting = [asyncio.create_task(item.run()) for item in actors]
    began, lasts = time.monotonic(), given.minutes * 60
    faults = Faults(world, service, place, given.seed, found.small_disk)
    failing = asyncio.create_task(
        faults.run(
            lambda: time.monotonic() - began > lasts,
            servers=lambda: time.monotonic() - began < lasts * SHARE_WITH_SERVERS_ENDED,
        )
    )
    steady: list[checks.Size] = []
    while not failing.done():
        await asyncio.sleep(5)
        passed = time.monotonic() - began
        # A minute after the last start, the server has allocated what it needs.
        if passed > lasts * SHARE_WITH_SERVERS_ENDED + 60 and (
            size := checks.size_of(service, tally.started)
        ):
            steady.append(size)
        requests, done = sum(tally.answers.values()), sum(tally.faults.values())
        _say(
            f"{passed:.0f} of {lasts:.0f} s: {requests} requests, {done} faults, {tally.lost} lost"
        )
    failing.result()
    found.steady = steady
    _say("settling …")
    world.stopping.set()
    for item in await asyncio.gather(*acting, return_exceptions=True):
        if isinstance(item, BaseException):
            tally.lose(f"an actor ended with {item!r}")
    for actor in actors:
        actor.client = world.client()
        async with actor.client:
            await actor.settle()
    await _end(world, service, found, tally)


async def _end(world: World, service: Service, found: Measurements, tally: Tally) -> None:
    found.lag = await _lag(world)
    _say("emptying …")
    await checks.empty(world)
    for remaining in await checks.quiet(service):
        tally.lose(f"a process is left: {remaining}")
    found.last = checks.size_of(service, tally.started)
    processes = service.processes()
    if code := service.stop():
        tally.lose(f"the server ended with {code} when it was asked to")
    for remaining in psutil.wait_procs(processes, timeout=10)[1]:
        tally.lose(f"a process outlives the server: {remaining}")
    database = service.data_dir / "stoker.db"
    # Deleted files disappear at once. Files of a server that was killed while it wrote them
    # disappear at the next search for unknown files, at a start or within the next hour. The offset
    # is a day because some were written while the clock was ahead.
    service.set_clock(24 * 3600)
    service.start()
    deadline = time.monotonic() + checks.QUIET_S
    while (checks.files(service.data_dir) or checks.rows(database)) and (
        time.monotonic() < deadline
    ):
        await asyncio.sleep(1)
    for name, count in checks.rows(database).items():
        tally.lose(f"{count} rows are left in {name}")
    for name in checks.files(service.data_dir):
        tally.lose(f"a file is left: {name}")
    await asyncio.sleep(10)
    found.fresh = checks.size_of(service, tally.started)
    checks.compare(world, found.last, found.fresh, found.steady)
    found.lives = service.lives
    if code := service.stop():
        tally.lose(f"a fresh server ended with {code} when it was asked to")
    for wrong in checks.check_ledger(database):
        tally.lose(wrong)


async def _world(service: Service, tally: Tally) -> World:
    headers = {"authorization": f"Bearer {service.operator_key}"}
    async with httpx.AsyncClient(
        base_url=service.base_url, headers=headers, trust_env=False
    ) as operator:
        made = await operator.post("/v1/accounts", json={"name": "soak"})
        account_id = made.raise_for_status().json()["id"]
        body = {"scope": "account", "account_id": account_id, "name": "soak"}
        key = (await operator.post("/v1/api-keys", json=body)).raise_for_status().json()
    return World(service.base_url, service.data_dir, key["id"], key["key"], account_id, tally)


async def _deploy_all(world: World) -> None:
    uploader = Uploader(world, "first")
    async with uploader.client:
        for folder in sorted(entry for entry in MODELS.iterdir() if (entry / "README.md").exists()):
            artifact = await uploader.push(folder, cut_share=0)
            if artifact is None:
                raise RuntimeError(f"{folder.name} could not be pushed")
            body = {"model": folder.name, "artifact_id": artifact.id, "readiness": "cold"}
            (await uploader.call("POST", "/v1/deployments", json=body)).raise_for_status()


async def _lag(world: World) -> dict[str, str]:
    """Returns the server's metrics of its event loop."""
    async with world.client(world.operator_key) as client:
        text = (await client.get("/metrics")).text
    return dict(re.findall(r"^(stoker_event_loop_\S+) (\S+)$", text, re.MULTILINE))


def _machine() -> str:
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.+)", text)
    name = model[1] if model else platform.machine()
    return f"{psutil.cpu_count()} cores, {name}, {psutil.virtual_memory().total / 2**30:.0f} GiB"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--report", help="a file for the report, Markdown")
    parser.add_argument("--keep-log", help="a file for the server's log")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
