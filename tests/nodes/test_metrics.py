"""Metrics of a fleet: reported by gateways about nodes, and by nodes about themselves."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import stoker
from tests.deployments.support import DEPLOYMENTS, bert, call, deploy
from tests.nodes.support import Fleet, fleet
from tests.servers.support import until
from tests.support import postgres
from tests.support.deploying import push
from tests.support.on_nodes import NodeHost
from tests.support.scraping import Scrape, scrape, scrape_until
from tests.support.server import Server

PATIENCE_S = 90.0
OF_CALLS = (
    "stoker_requests_total",
    "stoker_request_seconds_count",
    "stoker_http_requests_total",
    "stoker_tokens_total",
)


@dataclass
class Watched:
    """A gateway and a node with public metrics."""

    fleet: Fleet
    node: NodeHost
    metrics: httpx.Client
    """Client of the node's metrics."""
    account: httpx.Client
    artifact_id: str

    @property
    def gateway(self) -> Server:
        return self.fleet.gateways[0]

    def operator(self) -> httpx.Client:
        return self.gateway.client(self.gateway.operator_key)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    port = postgres._free_port()
    with (
        postgres.cluster() as cluster,
        fleet(tmp_path_factory.mktemp("watched"), cluster, gateways=0, nodes=0) as watched_fleet,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as metrics,
    ):
        node = watched_fleet.add_node(STOKER_METRICS_PORT=str(port), STOKER_NODE_NAME="watched")
        node.start()
        gateway = watched_fleet.add_gateway()
        gateway.start().wait_ready()
        with gateway.account() as account:
            yield Watched(watched_fleet, node, metrics, account, push(account, bert())["id"])


@pytest.fixture
def loaded(watched: Watched, request: pytest.FixtureRequest) -> dict[str, Any]:
    made = deploy(watched.account, watched.artifact_id, f"m-{request.node.name[5:25].strip('_')}")
    assert call(watched.account, made["model"], wait=60).status_code == 200
    return made


def of_model(watched: Watched, made: dict[str, Any]) -> dict[str, str]:
    return {"account": watched.account.account_id, "model": made["model"]}  # type: ignore[attr-defined]


def of_nodes(operator: httpx.Client) -> dict[str, dict[str, float]]:
    """Returns the data of `GET /v1/nodes` in the form of metrics."""
    by_node: dict[str, dict[str, float]] = {}
    for node in operator.get("/v1/nodes").raise_for_status().json()["data"]:
        replicas = [replica for lease in node["leases"] for replica in lease["replicas"]]
        by_node[node["id"]] = {
            **{f"memory_{w}_bytes": node["memory"][f"{w}_bytes"] for w in MEMORY},
            "leases": len(node["leases"]),
            **{
                f"replicas {status}": sum(each["status"] == status for each in replicas)
                for status in ("starting", "ready", "stopping")
            },
            **{
                f"status {status}": float(node["status"] == status)
                for status in ("ready", "starting", "draining", "unreachable")
            },
        }
    return by_node


MEMORY = ("held", "budget", "reserved")


def scraped(told: Scrape) -> dict[str, dict[str, float]]:
    """Returns the same data from the metrics."""
    by_node: dict[str, dict[str, float]] = {}
    for family in told.families.values():
        name = family.name.removeprefix("stoker_node_")
        for sample in family.samples if name != family.name else ():
            metric = f"{name} {sample.labels.get('status', '')}".strip()
            by_node.setdefault(sample.labels["id"], {})[metric] = sample.value
    return by_node


class TestOfGateways:
    def test_they_tell_what_they_list(self, watched: Watched, loaded: dict[str, Any]) -> None:
        with watched.operator() as operator:

            def alike() -> bool:
                before, samples = of_nodes(operator), scrape(operator)
                return before == scraped(samples) == of_nodes(operator)

            # Retry, because the node may report between the two reads.
            until(alike, PATIENCE_S)
            samples = scrape(operator)
        which = {"node": "watched", "id": watched.node.id}
        assert samples.get("stoker_node_leases", **which) >= 1
        assert samples.get("stoker_node_replicas", status="ready", **which) >= 1
        assert samples.get("stoker_node_status", status="ready", **which) == 1
        held_bytes = samples.get("stoker_node_memory_held_bytes", **which)
        assert 0 < held_bytes < samples.get("stoker_node_memory_budget_bytes", **which)

    def test_what_is_kept_for_hot_deployments(self, watched: Watched) -> None:
        made = deploy(watched.account, watched.artifact_id, "kept", readiness="hot")
        with watched.operator() as operator:
            name, which = "stoker_node_memory_reserved_bytes", {"id": watched.node.id}
            samples = scrape_until(operator, name, 1, **which)
            assert scraped(samples)[watched.node.id]["memory_reserved_bytes"] > 0
            watched.account.delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()
            until(lambda: scrape(operator).get(name, **which) == 0, PATIENCE_S)

    def test_a_node_that_has_gone_has_no_series(self, watched: Watched) -> None:
        other = watched.fleet.add_node(STOKER_NODE_NAME="passing", STOKER_PRELOAD="false")
        other.start()
        with watched.operator() as operator:
            until(lambda: "passing" in scrape(operator).labels("node"), PATIENCE_S)
            samples = scrape(operator)
            assert samples.labels("id", "stoker_node_leases") == {watched.node.id, other.id}
            assert other.stop() == 0
            until(lambda: "passing" not in scrape(operator).labels("node"), PATIENCE_S)
            assert scrape(operator).labels("id", "stoker_node_status") == {watched.node.id}


class TestOfNodes:
    def test_what_it_runs(self, watched: Watched, loaded: dict[str, Any]) -> None:
        which = of_model(watched, loaded)
        samples = scrape_until(watched.metrics, "stoker_batch_size_sum", 1, **which)
        assert samples.get("stoker_replicas", status="ready", **which) == 1
        assert samples.get("stoker_requests_outstanding", **which) == 0
        assert samples.get("stoker_batch_size_sum", **which) == 1
        assert samples.get("stoker_cold_starts_total", outcome="loaded", **which) == 1
        assert samples.get("stoker_cold_start_seconds_count", **which) == 1
        assert samples.get("stoker_build_info", version=stoker.__version__) == 1
        path = f"{DEPLOYMENTS}/{loaded['id']}"

        def weighed_alike() -> bool:
            [worker] = watched.account.get(path).raise_for_status().json()["workers"]
            memory = scrape(watched.metrics).get("stoker_replica_memory_bytes", **which)
            return worker["memory_bytes"] and memory == worker["memory_bytes"]

        until(weighed_alike, PATIENCE_S)
        name = "stoker_memory_held_mib_ms_total"
        previous = scrape(watched.metrics).get(name, **which)
        assert (
            scrape_until(watched.metrics, name, previous + 1, **which).get(name, **which) > previous
        )
        with watched.operator() as operator:
            assert scrape(operator).get(name, **which) == 0
            # The called gateway counted the call. The node did not.
            assert scrape(operator).get("stoker_requests_total", outcome="ok", **which) == 1
        assert not {*OF_CALLS} & scrape(watched.metrics).names

    def test_its_machine_and_its_process(self, watched: Watched, loaded: dict[str, Any]) -> None:
        samples = scrape(watched.metrics)
        with watched.operator() as operator:
            [(identifier, listed)] = of_nodes(operator).items()
        which = {"node": "watched", "id": identifier}
        assert identifier == watched.node.id
        budget = samples.get("stoker_node_memory_budget_bytes", **which)
        assert budget == listed["memory_budget_bytes"]
        assert 0 < samples.get("stoker_node_memory_held_bytes", **which) <= budget
        assert samples.get("process_resident_memory_bytes") > 1 << 20
        assert samples.get("stoker_node_connections_refused_total", **which) == 0
        assert [
            family.name for family in samples.families.values() if not family.documentation
        ] == []

    def test_series_go_with_the_deployment(self, watched: Watched, loaded: dict[str, Any]) -> None:
        assert loaded["model"] in scrape(watched.metrics).labels("model")
        watched.account.delete(f"{DEPLOYMENTS}/{loaded['id']}").raise_for_status()
        until(lambda: loaded["model"] not in scrape(watched.metrics).labels("model"), PATIENCE_S)

    def test_it_serves_nothing_else(self, watched: Watched) -> None:
        assert watched.metrics.post("/metrics").status_code == 405
        for path in ("/", "/health", "/v1/nodes", "/v1/models", "/openapi.json"):
            assert watched.metrics.get(path).status_code == 404

    def test_a_port_that_is_taken_keeps_it_from_its_start(self, watched: Watched) -> None:
        used_port = str(watched.metrics.base_url.port)
        other = watched.fleet.add_node(STOKER_METRICS_PORT=used_port, STOKER_PRELOAD="false")
        with pytest.raises(RuntimeError, match="in use by process"):
            other.start()
        with watched.operator() as operator, contextlib.suppress(FileNotFoundError):
            assert other.id not in of_nodes(operator)
