"""Nodes forget deployments and trials that ended while no gateway could notify them."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
import psutil
import pytest

from tests.deployments.support import DEPLOYMENTS, bert, call, deploy
from tests.nodes.support import Fleet, fleet
from tests.servers.support import until
from tests.support import postgres
from tests.support.deploying import push
from tests.support.on_nodes import NodeHost
from tests.support.scraping import scrape
from tests.support.server import Server

pytestmark = pytest.mark.release

PATIENCE_S = 90.0
FORGOTTEN = "deleted specification dropped"
OFTEN = """\
#!{python}
# As `python -m stoker`, of a node that does its upkeep every half second.
import sys
from stoker.server import node
node.SWEEP_S = 0.5
from stoker.cli.main import main
sys.argv = ["stoker", *sys.argv[3:]]
main()
"""


@dataclass
class Tidy:
    fleet: Fleet
    node: NodeHost
    metrics: httpx.Client
    """Client of the node's metrics."""
    account: httpx.Client
    artifact_id: str

    @property
    def gateway(self) -> Server:
        return self.fleet.gateways[0]

    def models(self) -> set[str]:
        """Returns the models with metrics on the node, which the node has received and started."""
        return scrape(self.metrics).labels("model")

    def lines(self, message: str) -> list[str]:
        return [line for line in self.node.log.read_text().splitlines() if message in line]

    def asked(self, statement: str, *values: str) -> list[Any]:
        """Returns the first column of the rows that PostgreSQL finds."""

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(self.fleet.cluster.url.replace("+asyncpg", ""))
            try:
                return [row[0] for row in await connection.fetch(statement, *values)]
            finally:
                await connection.close()

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidy]:
    root, port = tmp_path_factory.mktemp("tidy"), postgres._free_port()
    python = root / "python-often"
    python.write_text(OFTEN.format(python=sys.executable))
    python.chmod(0o755)
    with (
        postgres.cluster() as cluster,
        fleet(root, cluster, gateways=0, nodes=0) as tidy_fleet,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as metrics,
    ):
        node = tidy_fleet.add_node(python=str(python), STOKER_METRICS_PORT=str(port))
        node.start()
        gateway = tidy_fleet.add_gateway()
        gateway.start().wait_ready()
        with gateway.account() as account:
            yield Tidy(tidy_fleet, node, metrics, account, push(account, bert())["id"])


def loaded(tidy: Tidy, model: str) -> dict[str, Any]:
    made = deploy(tidy.account, tidy.artifact_id, model)
    assert call(tidy.account, model, wait=60).status_code == 200
    until(lambda: model in tidy.models(), PATIENCE_S)
    return made


def status_of(tidy: Tidy) -> str:
    with tidy.gateway.client(tidy.gateway.operator_key) as operator:
        [node] = operator.get("/v1/nodes").raise_for_status().json()["data"]
    return node["status"]


@pytest.mark.fault("n10")
def test_deleted_while_its_node_was_cut_off(tidy: Tidy) -> None:
    kept, gone = loaded(tidy, "kept"), loaded(tidy, "gone")
    # A stopped deployment soon has no lease, but it still exists.
    stopped = loaded(tidy, "stopped")
    tidy.account.post(f"{DEPLOYMENTS}/{stopped['id']}/stop").raise_for_status()
    log_of = lambda made: tidy.node.data_dir / "logs" / f"{made['id']}.log"  # noqa: E731
    until(lambda: log_of(gone).exists(), PATIENCE_S)
    [worker] = tidy.account.get(f"{DEPLOYMENTS}/{gone['id']}").json()["workers"]
    replica = psutil.Process(worker["pid"])
    assert tidy.node.process
    tidy.node.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: status_of(tidy) == "unreachable", PATIENCE_S)
        tidy.account.delete(f"{DEPLOYMENTS}/{gone['id']}").raise_for_status()
        delete_leases = "DELETE FROM leases WHERE deployment_id = $1"
        tidy.asked(delete_leases, stopped["id"])
        assert "gone" not in tidy.account.get(DEPLOYMENTS).text
    finally:
        tidy.node.process.send_signal(signal.SIGCONT)
    until(lambda: tidy.lines(FORGOTTEN), PATIENCE_S)
    until(lambda: "gone" not in tidy.models(), PATIENCE_S)
    until(lambda: not log_of(gone).exists(), PATIENCE_S)
    until(lambda: not replica.is_running(), PATIENCE_S)
    # Existing deployments stay as they are, with or without a lease.
    assert call(tidy.account, "kept", wait=60).status_code == 200
    time.sleep(2)
    assert len(tidy.lines(FORGOTTEN)) == 1
    assert {"kept", "stopped"} <= tidy.models()
    assert log_of(kept).exists()
    assert log_of(stopped).exists()
    starts = f'"{kept["id"]}", "status": "starting"'
    assert len(tidy.lines(starts)) == 1


def test_trials_whose_server_was_killed(tidy: Tidy) -> None:
    made = loaded(tidy, "tried")
    body = {"engines": ["torch"]}
    trial = tidy.account.post(f"{DEPLOYMENTS}/{made['id']}/trials", json=body).raise_for_status()
    of_trials = "SELECT spec_id FROM leases WHERE deployment_id LIKE 'trial_%'"
    [spec_id], _ = until(lambda: tidy.asked(of_trials), PATIENCE_S)
    before = len(tidy.lines(FORGOTTEN))
    # A running trial is kept, although it is no deployment.
    trial_id = trial.json()["id"]
    until(lambda: tidy.lines(f'"{trial_id}", "status": "ready"'), PATIENCE_S)
    tidy.gateway.kill()
    time.sleep(2)
    assert len(tidy.lines(FORGOTTEN)) == before
    tidy.asked("DELETE FROM leases WHERE spec_id = $1", spec_id)
    until(lambda: len(tidy.lines(FORGOTTEN)) > before, PATIENCE_S)
    assert all(f'"{spec_id}"' in line for line in tidy.lines(FORGOTTEN)[before:])
    # The next server continues the trial with another specification.
    port = int(tidy.gateway.base_url.rpartition(":")[2])
    tidy.gateway.start(port=port)
    path = f"{DEPLOYMENTS}/{made['id']}/trials/{trial_id}"
    until(lambda: tidy.account.get(path).json()["status"] == "completed", PATIENCE_S)
