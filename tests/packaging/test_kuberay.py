"""The containers of the chart's RayCluster, run as KubeRay would have them run, without pods."""

import contextlib
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
VALUES = {**RAY_LEAST, "nodes": {"resources": {"limits": {"memory": f"{LIMIT_MIB}Mi"}}}}
ASKING = ("-m", "ray.scripts.scripts", "health-check", "--address")
HEALTH_S = 60


@dataclass
class Cluster:
    url: str
    port: int
    head: Command
    node: Command
    node_id: str
    node_env: dict[str, str]

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
        yield Cluster(database.url, port, head, node, found["id"], envs[1])


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
    waiting = cluster.node.child("ray.scripts.scripts")
    cluster.head.child("gcs_server").kill()
    until(lambda: cluster.health(**cluster.node_env) == 0)
    assert waiting.is_running()
    made = cluster.place(64)
    assert until(lambda: cluster.where(made), 180.0) == [cluster.node_id]
    assert cluster.node.is_running and cluster.head.is_running
