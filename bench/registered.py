"""Cost of ten thousand deployments and a hundred thousand keys for calls to one deployment."""

import asyncio
import hashlib
import json
import os
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from sqlalchemy import Connection, MetaData, insert, select
from sqlalchemy.ext.asyncio import create_async_engine

from bench import fleet
from bench.common import Plan, Report, at_most, percentile, scratch
from bench.models import minilm
from bench.samples import texts
from bench.server import START_S, running
from bench.service import Service, serving

DEPLOYMENTS = 10_000
KEYS = 100_000
CALLS = 300
PATH = "/v1/embeddings"
MODEL = "measured"
BODY = json.dumps({"model": MODEL, "input": "now such like our over man"}).encode()
ONE, ALL = "p50 of a warm call, one deployment", "p50 of a warm call, all of them"
FLEET, READY_S = "a fleet", 5.0


def run(plan: Plan) -> Report:
    deployments, keys = plan.sized(DEPLOYMENTS, 50), plan.sized(KEYS, 100)
    report = Report("registered", f"{deployments:,} deployments and {keys:,} keys beside one model")
    _one_server(report, plan, deployments, keys)
    _fleet(report, plan, deployments, keys)
    return report


def _one_server(report: Report, plan: Plan, deployments: int, keys: int) -> None:
    bodies = [json.dumps({"model": MODEL, "input": text}).encode() for text in texts(192)]
    with scratch() as place:
        with serving(report, place) as service:
            measured = service.deploy(minilm(), MODEL, "feature-extraction", readiness="hot")
            # Otherwise it would be converted between the two compared measurements.
            service.settle(measured, PATH, bodies)
            engine = service.tell_engine(measured)
            key = service.key
        # Restarted for both, because calls directly after a start take a tenth longer than after a
        # while.
        with running(report, place, side="ours, with one of them") as server:
            server.wait_ready()
            service = Service(server, report, "ours, with one of them", key)
            service.wait_engine(measured, engine)
            few = _p50s(report, service, plan.rounds, ONE)
        _register(f"sqlite+aiosqlite:///{place}/data/stoker.db", deployments, keys)
        began = time.perf_counter()
        with running(report, place, side="ours, with all of them") as server:
            report.add(
                "until the server with all of them listens", "s", time.perf_counter() - began
            )
            server.wait_ready()
            service = Service(server, report, "ours, with all of them", key)
            service.wait_engine(measured, engine)
            _compare(report, "", few, _p50s(report, service, plan.rounds, ALL))
    report.notes += [
        "The rows are copies of the measured deployment and its key, written into SQLite while the "
        "server is stopped; so the two are not measured in turn.",
        f"{CALLS} calls a round, on one kept connection; the model runs with {engine} for both.",
    ]


def _fleet(report: Report, plan: Plan, deployments: int, keys: int) -> None:
    with (
        scratch() as place,
        fleet.started(report, place / "fleet", FLEET, "--nodes", "1", "--gateways", "1") as server,
    ):
        service = Service(server, report, FLEET)
        # With torch, no conversion occurs between the two compared measurements.
        wish = {"readiness": "hot", "engine": "torch"}
        measured = service.deploy(minilm(), MODEL, "feature-extraction", **wish)
        service.wait_status(measured, "ready")
        few = _p50s(report, service, plan.rounds, ONE)
        state = server.data_dir / "gateway-1" / "server.json"
        before = psutil.Process(fleet.pid_of(state))
        _register(before.environ()["STOKER_DATABASE_URL"], deployments, keys)
        os.kill(before.pid, signal.SIGTERM)
        before.wait()
        after = _next_process(state, before.pid)
        server.wait_ready()
        report.add(
            f"{FLEET}: a gateway ready, with all of them",
            "s",
            time.time() - after.create_time(),
            aim=f"≤ {READY_S:g} s",
            meets=at_most(READY_S),
        )
        service.wait_status(measured, "ready")
        _compare(report, f"{FLEET}: ", few, _p50s(report, service, plan.rounds, ALL))
    report.notes.append(
        "The fleet: a gateway, a node and a PostgreSQL, into which the rows are written; then the "
        "gateway is ended, and started again."
    )


def _next_process(state: Path, before: int) -> psutil.Process:
    """Returns the gateway that replaced one that has ended."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        # The file is briefly missing.
        if state.exists() and (pid := fleet.pid_of(state)) != before:
            return psutil.Process(pid)
        time.sleep(0.01)
    raise RuntimeError("the gateway was not started again")


def _compare(report: Report, side: str, few: Sequence[float], many: Sequence[float]) -> None:
    for single_s, all_of_them in zip(few, many, strict=True):
        report.add(f"{side}{ONE}", "ms", single_s * 1e3)
        report.add(f"{side}{ALL}", "ms", all_of_them * 1e3)
        ratio = all_of_them / single_s
        report.add(f"{side}all of them / one", "x", ratio, aim="≤ 1.1", meets=at_most(1.1))


def _p50s(report: Report, service: Service, rounds: int, label: str) -> list[float]:
    """Returns the p50 of each round, after one round that is not counted."""
    return [_p50(report, service, label) for _ in range(rounds + 1)][1:]


def _p50(report: Report, service: Service, label: str) -> float:
    seconds: list[float] = []
    with service.connect(PATH) as connection, report.client.asking(label):
        for _ in range(CALLS):
            began = time.perf_counter()
            connection.post(BODY)
            seconds.append(time.perf_counter() - began)
    return percentile(seconds[CALLS // 10 :], 0.5)


def _register(url: str, deployments: int, keys: int) -> None:
    async def register() -> None:
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(_copy, deployments, keys)
        finally:
            await engine.dispose()

    asyncio.run(register())


def _copy(connection: Connection, deployments: int, keys: int) -> None:
    names = ("deployments", "deployment_versions", "api_keys")
    metadata = MetaData()
    metadata.reflect(connection, only=names)
    models, versions, api_keys = (metadata.tables[name] for name in names)
    model = connection.execute(select(models)).mappings().one()
    version = connection.execute(select(versions)).mappings().one()
    ours = select(api_keys).where(api_keys.c.scope == "account").limit(1)
    key = connection.execute(ours).mappings().one()
    numbers = [f"{at:022d}" for at in range(max(deployments, keys))]
    made = [
        {
            "id": f"dep_copy{number}",
            "live_version_id": f"ver_copy{number}",
            "model": f"copy-{number}",
            "readiness": "cold",
        }
        for number in numbers[:deployments]
    ]
    their_versions = [{"id": row["live_version_id"], "deployment_id": row["id"]} for row in made]
    their_keys = [
        {
            "id": f"key_copy{number}",
            "public_id": f"copy{number[-8:]}",
            "secret_sha256": hashlib.sha256(secrets.token_bytes(32)).digest(),
        }
        for number in numbers[:keys]
    ]
    connection.execute(insert(models), [{**model, **row} for row in made])
    connection.execute(insert(versions), [{**version, **row} for row in their_versions])
    connection.execute(insert(api_keys), [{**key, **row} for row in their_keys])
