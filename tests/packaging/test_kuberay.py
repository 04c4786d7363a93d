"""The containers of the chart's RayCluster, run as KubeRay would have them run, without pods."""

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

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")
pytestmark = MISSING

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
    """Of the RayCluster."""

    def decided(self) -> list[Any]:
        """Of the autoscaler, as though all nodes were full: leases that wait, nodes to be added of
        which kind, leases that no node would have room for."""
        env = {
            one["name"]: one.get("value", TOKEN) for one in self.spec["autoscalerOptions"]["env"]
        }
        read = {"metadata": {"name": "models", "namespace": "prod"}, "spec": self.spec}
        said = subprocess.run(
            [sys.executable, "-c", DECIDE],
            input=json.dumps([f"{HOST}:{self.port}", read]),
            env={**os.environ, **env},
            capture_output=True,
            timeout=HEALTH_S,
            check=False,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    def place(self, mib: int) -> int:
        """A lease of nothing, as a server takes it for a trial, that is to be placed."""
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
        """What the container says that KubeRay has wait for the head, before each node."""
        kept = {name: one for name, one in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.run(
            [sys.executable, *ASKING, f"{HOST}:{self.port}"],
            env={**kept, **env},
            capture_output=True,
            timeout=HEALTH_S,
            check=False,
        ).returncode


def resolved(container: dict[str, Any], url: str) -> dict[str, str]:
    """Its own variables, as a pod of this machine would have them."""
    referred = {
        "database-url": url,
        "ray-token": TOKEN,
        "status.podIP": HOST,
    }
    found: dict[str, str] = {}
    for name, value in variables(container).items():
        if isinstance(value, str):
            found[name] = value
        elif "secretKeyRef" in value:
            found[name] = referred[value["secretKeyRef"]["key"]]
        else:
            found[name] = referred[value["fieldRef"]["fieldPath"]]
    return found


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
            # A machine of its own has an address, folders and ports of its own.
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
        for one in commands:
            stack.callback(one.stop)
            one.start()
        try:
            found = until(lambda: state(root / "node"))
        except AssertionError as error:
            error.add_note("\n".join(one.last_lines() for one in commands))
            raise
        head, node = commands
        yield Cluster(database.url, port, head, node, found["id"], envs[1], spec)


@pytest.mark.timeout(300)
def test_a_node_is_placed_on(cluster: Cluster) -> None:
    made = cluster.place(100)
    assert until(lambda: cluster.where(made)) == [cluster.node_id]
    cluster.drop(made)
    # What the chart said that the node has, and not what the container's limit is.
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
    """By what Ray's own autoscaler would decide of the demand that Ray has."""
    room = int(cluster.node_env["STOKER_MEMORY_BUDGET_MIB"])
    first = cluster.place(room)
    assert until(lambda: cluster.where(first)) == [cluster.node_id]
    assert cluster.decided() == [0, {}, 0]
    waiting = [cluster.place(room // 2 - 32) for _ in range(2)]
    assert until(lambda: (found := cluster.decided())[0] == 2 and found) == [2, {"nodes": 1}, 0]
    waiting += [cluster.place(room), cluster.place(room)]
    # Two are all that there may be, and the larger ones come first.
    assert until(lambda: (found := cluster.decided())[0] == 4 and found) == [4, {"nodes": 2}, 2]
    for one in waiting:
        cluster.drop(one)
    assert until(lambda: (found := cluster.decided())[0] == 0 and found) == [0, {}, 0]
    # Nothing for what none would have room for.
    large = cluster.place(room + 16)
    time.sleep(2)
    assert cluster.decided()[1] == {}
    for one in (first, large):
        cluster.drop(one)


@pytest.mark.timeout(300)
def test_whoever_waits_for_the_head_may_ask_it(cluster: Cluster) -> None:
    """By the variables of the container that comes after it, and by nothing less."""
    made = cluster.place(16)
    assert until(lambda: cluster.where(made))
    cluster.drop(made)
    assert cluster.health(**cluster.node_env) == 0
    assert cluster.health() == 1


@pytest.mark.timeout(400)
def test_a_head_that_was_killed_comes_back(cluster: Cluster) -> None:
    """In the same pod, while Ray on the nodes waits for it, which goes on for a minute."""
    until(lambda: cluster.health(**cluster.node_env) == 0)
    cluster.head.child("gcs_server").kill()
    until(lambda: cluster.health(**cluster.node_env) == 0)
    # It does not take who waits for it for a head that is there.
    assert "already running" not in cluster.head.last_lines()
    made = cluster.place(64)
    assert until(lambda: cluster.where(made), 180.0) == [cluster.node_id]
    assert cluster.node.is_running and cluster.head.is_running
