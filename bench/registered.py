"""What ten thousand deployments and a hundred thousand keys cost the calls to one of them."""

import hashlib
import json
import secrets
import time
from pathlib import Path

from sqlalchemy import MetaData, create_engine, insert, select

from bench.common import Plan, Report, at_most, percentile, scratch
from bench.models import minilm, texts
from bench.server import running
from bench.service import Service, serving

DEPLOYMENTS = 10_000
KEYS = 100_000
CALLS = 300
PATH = "/v1/embeddings"
MODEL = "measured"
BODY = json.dumps({"model": MODEL, "input": "now such like our over man"}).encode()
ONE, ALL = "p50 of a warm call, one deployment", "p50 of a warm call, all of them"


def run(plan: Plan) -> Report:
    deployments, keys = plan.sized(DEPLOYMENTS, 50), plan.sized(KEYS, 100)
    report = Report("registered", f"{deployments:,} deployments and {keys:,} keys beside one model")
    bodies = [json.dumps({"model": MODEL, "input": text}).encode() for text in texts(192)]
    with scratch() as place:
        with serving(report, place) as service:
            measured = service.deploy(minilm(), MODEL, "feature-extraction", readiness="hot")
            # Else it would be converted between the two that are compared.
            service.settle(measured, PATH, bodies)
            engine = service.tell_engine(measured)
            few = _p50s(report, service, plan.rounds, ONE)
            key = service.key
        _register(place / "data" / "stoker.db", deployments, keys)
        began = time.perf_counter()
        with running(report, place, side="ours, with all of them") as server:
            report.add(
                "until the server with all of them listens", "s", time.perf_counter() - began
            )
            server.wait_ready()
            service = Service(server, report, "ours, with all of them", key)
            service.wait_engine(measured, engine)
            for fewer, many in zip(few, _p50s(report, service, plan.rounds, ALL), strict=True):
                report.add(ONE, "ms", fewer * 1e3)
                report.add(ALL, "ms", many * 1e3)
                report.add("all of them / one", "x", many / fewer, aim="≤ 1.1", meets=at_most(1.1))
    report.notes += [
        "The rows are copies of the measured deployment and its key, written into SQLite while the "
        "server is stopped; so the two are not measured in turn.",
        f"{CALLS} calls a round, on one kept connection; the model runs with {engine} for both.",
    ]
    return report


def _p50s(report: Report, service: Service, rounds: int, label: str) -> list[float]:
    """Of each round, after one that is not counted."""
    return [_p50(report, service, label) for _ in range(rounds + 1)][1:]


def _p50(report: Report, service: Service, label: str) -> float:
    seconds: list[float] = []
    with service.connect(PATH) as connection, report.client.asking(label):
        for _ in range(CALLS):
            began = time.perf_counter()
            connection.post(BODY)
            seconds.append(time.perf_counter() - began)
    return percentile(seconds[CALLS // 10 :], 0.5)


def _register(database: Path, deployments: int, keys: int) -> None:
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        found = MetaData()
        found.reflect(engine, only=["deployments", "api_keys"])
        models, api_keys = found.tables["deployments"], found.tables["api_keys"]
        one = connection.execute(select(models)).mappings().one()
        copies = [
            {**one, "id": f"dep_copy{at:022d}", "model": f"copy-{at}", "readiness": "cold"}
            for at in range(deployments)
        ]
        connection.execute(insert(models), copies)
        ours = select(api_keys).where(api_keys.c.scope == "account").limit(1)
        key = connection.execute(ours).mappings().one()
        more = [
            {
                **key,
                "id": f"key_copy{at:022d}",
                "public_id": f"copy{at:08d}",
                "secret_sha256": hashlib.sha256(secrets.token_bytes(32)).digest(),
            }
            for at in range(keys)
        ]
        connection.execute(insert(api_keys), more)
    engine.dispose()
