"""Runs the containers of the chart's RayCluster as KubeRay would, without pods."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.test_faults import asked
from tests.packaging.conftest import MISSING
from tests.packaging.kuberay import expanded, start_command
from tests.packaging.test_chart import SECRET, of_kind, rendered
from tests.packaging.test_fleet_chart import RAY_LEAST, TOKEN, variables
from tests.ray.support import Command, free_port, state, until
from tests.support import postgres

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")
pytestmark = [pytest.mark.release, MISSING]

HOST = "127.0.0.1"
LIMIT_MIB = 500
SCALED = {"minReplicas": 0, "maxReplicas": 2}
VALUES = {
    **RAY_LEAST,
    "nodes": {"resources": {"limits": {"memory": f"{LIMIT_MIB}Mi"}}},
    "ray": {**RAY_LEAST["ray"], "autoscaling": SCALED},
}
ASKING = ("-m", "ray.scripts.scripts", "health-check", "--address")
HEALTH_S = 60
DECIDE = """
import json, sys
from ray._raylet import GcsClient
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.sdk import get_cluster_resource_state
address, cluster = json.load(sys.stdin)
read = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)
config = AutoscalingConfig(read, skip_content_hash=True)
state = get_cluster_resource_state(GcsClient(address=address))
waiting = list(state.pending_gang_resource_requests)
reply = ResourceDemandScheduler().schedule(
    SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=config.get_node_type_configs(),
        max_num_nodes=config.get_max_num_nodes(),
        gang_resource_requests=waiting,
    )
)
launched = {one.instance_type: one.count for one in reply.to_launch}
print(json.dumps([len(waiting), launched, len(reply.infeasible_gang_resource_requests)]))
"""


@dataclass
class Cluster:
    url: str
    port: int
    head: Command
    node: Command
    node_id: str
    node_env: dict[str, str]
    spec: dict[str, Any]
    """Specification of the RayCluster."""

    def decided(self) -> list[Any]:
        """Returns the autoscaler's decision as though all nodes were full: waiting leases, nodes to
        add by kind, and leases that fit no node.
        """
        env = {
            variable["name"]: variable.get("value", TOKEN)
            for variable in self.spec["autoscalerOptions"]["env"]
        }
        read = {"metadata": {"name": "models", "namespace": "prod"}, "spec": self.spec}
        result = subprocess.run(
            [sys.executable, "-c", DECIDE],
            input=json.dumps([f"{HOST}:{self.port}", read]),
            env={**os.environ, **env},
            capture_output=True,
            timeout=HEALTH_S,
            check=False,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def place(self, mib: int) -> int:
        """Inserts an empty lease to be placed, as a server does for a trial. Returns its
        generation.
        """
        statement = (
            "INSERT INTO leases (spec_id, deployment_id, created_at, memory_bytes, may_evict,"
            " is_kept) VALUES (:name, :name, clock_timestamp(), :mib * 1048576, false, false)"
            " RETURNING generation"
        )
        [made] = asked(self.url, statement, name=f"trial_{secrets.token_hex(8)}", mib=mib)
        return made

    def where(self, generation: int) -> list[str]:
        statement = "SELECT node_id FROM leases WHERE generation = :one AND node_id IS NOT NULL"
        return asked(self.url, statement, one=generation)

    def drop(self, generation: int) -> None:
        asked(self.url, "DELETE FROM leases WHERE generation = :one RETURNING 1", one=generation)

    def health(self, **env: str) -> int:
        """Returns the exit code of the container that waits for the head before each node."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("RAY_")
        }
        return subprocess.run(
            [sys.executable, *ASKING, f"{HOST}:{self.port}"],
            env={**inherited, **env},
            capture_output=True,
            timeout=HEALTH_S,
            check=False,
        ).returncode


def resolved(container: dict[str, Any], url: str) -> dict[str, str]:
    """Returns the container's own variables as a pod on this machine would have them."""
    referred = {
        "database-url": url,
        "ray-token": TOKEN,
        "status.podIP": HOST,
    }
    environment: dict[str, str] = {}
    for name, value in variables(container).items():
        if isinstance(value, str):
            environment[name] = value
        elif "secretKeyRef" in value:
            environment[name] = referred[value["secretKeyRef"]["key"]]
        else:
            environment[name] = referred[value["fieldRef"]["fieldPath"]]
    return environment


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("kuberay")
    (root / "secret").write_text(SECRET)
    documents = rendered(VALUES)
    spec, port = of_kind(documents, "RayCluster")["spec"], free_port()
    shared = {
        **of_kind(documents, "ConfigMap")["data"],
        "STOKER_BLOB_URL": f"file://{root}/blobs",
        "STOKER_SECRET_FILE": str(root / "secret"),
        "RAY_ADDRESS": f"{HOST}:{port}",
    }
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres.cluster())
        commands: list[Command] = []
        envs: list[dict[str, str]] = []
        for group, address in (
            (spec["headGroupSpec"], None),
            (spec["workerGroupSpecs"][0], f"{HOST}:{port}"),
        ):
            name = "node" if address else "head"
            # A separate machine has its own address, folders and ports.
            folder = Path(f"/tmp/stoker-{secrets.token_hex(4)}")
            stack.callback(subprocess.run, ["rm", "-rf", str(folder)], check=True)
            group["rayStartParams"] |= {
                "node-ip-address": HOST,
                "temp-dir": str(folder),
                "metrics-export-port": str(free_port()),
            }
            if not address:
                group["rayStartParams"]["port"] = str(port)
            (container,) = group["template"]["spec"]["containers"]
            env = resolved(container, database.url)
            envs.append(dict(env))
            env |= {"KUBERAY_GEN_RAY_START_CMD": start_command(group, head=address, scaled=True)}
            if address:
                env["STOKER_NODE_PORT"] = str(free_port())
            words = expanded(container["args"], {**shared, **env})
            words += ["--data-dir", str(root / name)]
            commands.append(Command(root / f"{name}.log", *words, **{**shared, **env}))
        for command in commands:
            stack.callback(command.stop)
            command.start()
        try:
            node_state = until(lambda: state(root / "node"))
        except AssertionError as error:
            error.add_note("\n".join(command.last_lines() for command in commands))
            raise
        head, node = commands
        yield Cluster(database.url, port, head, node, node_state["id"], envs[1], spec)


@pytest.mark.timeout(300)
def test_a_node_is_placed_on(cluster: Cluster) -> None:
    made = cluster.place(100)
    assert until(lambda: cluster.where(made)) == [cluster.node_id]
    cluster.drop(made)
    # The room of the node is set by the chart, not by the container's limit.
    room = int(cluster.node_env["STOKER_MEMORY_BUDGET_MIB"])
    more = cluster.place(room + 16)
    fits = cluster.place(room)
    assert until(lambda: cluster.where(fits)) == [cluster.node_id]
    cluster.drop(fits)
    time.sleep(2)
    assert cluster.where(more) == []
    cluster.drop(more)


@pytest.mark.timeout(300)
def test_nodes_are_added_for_what_waits(cluster: Cluster) -> None:
    """Ray's own autoscaler would add nodes for the demand that Ray reports."""
    room = int(cluster.node_env["STOKER_MEMORY_BUDGET_MIB"])
    first = cluster.place(room)
    assert until(lambda: cluster.where(first)) == [cluster.node_id]
    # Ray reports a change of its leases in several steps.
    until(lambda: cluster.decided() == [0, {}, 0])
    waiting = [cluster.place(room // 2 - 32) for _ in range(2)]
    until(lambda: cluster.decided() == [2, {"nodes": 1}, 0])
    waiting += [cluster.place(room), cluster.place(room)]
    # The limit is two nodes, and larger leases are placed first.
    until(lambda: cluster.decided() == [4, {"nodes": 2}, 2])
    for generation in waiting:
        cluster.drop(generation)
    until(lambda: cluster.decided() == [0, {}, 0])
    # No node is added for a lease that fits no node.
    large = cluster.place(room + 16)
    time.sleep(2)
    assert cluster.decided()[1] == {}
    for generation in (first, large):
        cluster.drop(generation)


@pytest.mark.timeout(300)
def test_whoever_waits_for_the_head_may_ask_it(cluster: Cluster) -> None:
    """The health check succeeds only with the variables of the container that follows it."""
    made = cluster.place(16)
    assert until(lambda: cluster.where(made))
    cluster.drop(made)
    assert cluster.health(**cluster.node_env) == 0
    assert cluster.health() == 1


@pytest.mark.timeout(400)
def test_a_head_that_was_killed_comes_back(cluster: Cluster) -> None:
    """The head restarts in the same pod. Ray on the nodes waits for it for a minute."""
    until(lambda: cluster.health(**cluster.node_env) == 0)
    cluster.head.child("gcs_server").kill()
    until(lambda: cluster.health(**cluster.node_env) == 0)
    # The new head does not mistake waiting nodes for a running head.
    assert "already running" not in cluster.head.last_lines()
    made = cluster.place(64)
    assert until(lambda: cluster.where(made), 180.0) == [cluster.node_id]
    assert cluster.node.is_running and cluster.head.is_running
