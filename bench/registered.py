"""What ten thousand deployments and a hundred thousand keys cost the calls to one of them."""

import hashlib
import json
import secrets
import time
from pathlib import Path

from sqlalchemy import MetaData, create_engine, insert, select

from bench.common import Report, at_most, percentile, scratch
from bench.models import minilm
from bench.service import Service
from tests.support.server import running

DEPLOYMENTS = 10_000
KEYS = 100_000
CALLS = 300
PATH = "/v1/embeddings"
MODEL = "measured"


def run(rounds: int) -> Report:
    report = Report("registered", f"{DEPLOYMENTS:,} deployments and {KEYS:,} keys beside one model")
    with scratch() as place:
        data_dir = place / "data"
        with running(data_dir, STOKER_LOG_LEVEL="warning") as server:
            server.wait_ready()
            service = Service(server)
            service.deploy(minilm(), MODEL, "feature-extraction", "hot")
            _p50(service, service.key)
            few = [_p50(service, service.key) for _ in range(rounds)]
            key = service.key
        _register(data_dir / "stoker.db")
        began = time.perf_counter()
        with running(data_dir, STOKER_LOG_LEVEL="warning") as server:
            report.add(
                "until the server with all of them listens", "s", time.perf_counter() - began
            )
            server.wait_ready()
            service = Service(server)
            _p50(service, key)
            for fewer in few:
                many = _p50(service, key)
                report.add("p50 of a warm call, one deployment", "ms", fewer * 1e3)
                report.add("p50 of a warm call, all of them", "ms", many * 1e3)
                report.add("all of them / one", "x", many / fewer, aim="≤ 1.1", meets=at_most(1.1))
    report.notes = [
        "The rows are copies of the measured deployment and its key, written into SQLite while the "
        "server is stopped; so the two are not measured in turn."
    ]
    return report


def _p50(service: Service, key: str) -> float:
    body = json.dumps({"model": MODEL, "input": "now such like our over man"}).encode()
    service.key = key
    seconds: list[float] = []
    with service.connect(PATH) as connection:
        for _ in range(CALLS):
            began = time.perf_counter()
            connection.post(body)
            seconds.append(time.perf_counter() - began)
    return percentile(seconds[CALLS // 10 :], 0.5)


def _register(database: Path) -> None:
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        found = MetaData()
        found.reflect(engine, only=["deployments", "api_keys"])
        deployments, api_keys = found.tables["deployments"], found.tables["api_keys"]
        one = connection.execute(select(deployments)).mappings().one()
        copies = [
            {**one, "id": f"dep_copy{at:022d}", "model": f"copy-{at}", "readiness": "cold"}
            for at in range(DEPLOYMENTS)
        ]
        connection.execute(insert(deployments), copies)
        ours = select(api_keys).where(api_keys.c.scope == "account").limit(1)
        key = connection.execute(ours).mappings().one()
        keys = [
            {
                **key,
                "id": f"key_copy{at:022d}",
                "public_id": f"copy{at:08d}",
                "secret_sha256": hashlib.sha256(secrets.token_bytes(32)).digest(),
            }
            for at in range(KEYS)
        ]
        connection.execute(insert(api_keys), keys)
    engine.dispose()
