"""What the processes of a fleet are given."""

import contextlib
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB, Settings
from stoker.client.errors import CliError, WrongUseError
from stoker.cluster import ray
from stoker.cluster.member import Program
from stoker.cluster.plan import Plan
from stoker.runtime.machine_memory import SHARE, machine_bytes

URL = "postgresql+asyncpg://stoker@127.0.0.1:9/stoker"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in os.environ if one.startswith("STOKER_")]:
        monkeypatch.delenv(name)


def plan(data_dir: Path, nodes: int = 2, gateways: int = 2, **given: Any) -> Plan:
    settings = Settings(_env_file=None, data_dir=data_dir, **given)  # type: ignore[call-arg]
    return Plan(settings=settings, nodes=nodes, gateways=gateways)


def test_nodes_share_memory_and_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    for count in (1, 3, 2 * cores):
        programs = plan(tmp_path, count).node_programs(URL)
        assert len({one.state for one in programs}) == count
        for one in programs:
            mib = int(one.env["STOKER_MEMORY_BUDGET_MIB"])
            assert mib == pytest.approx(machine_bytes() * SHARE / MIB / count, abs=1)
            assert one.env["STOKER_REPLICA_THREADS"] == str(max(1, cores // count))


def test_what_is_set_is_for_each_node(tmp_path: Path) -> None:
    found = plan(tmp_path, memory_budget_mib=512, replica_threads=3).node_programs(URL)
    given = {
        (one.env["STOKER_MEMORY_BUDGET_MIB"], one.env["STOKER_REPLICA_THREADS"]) for one in found
    }
    assert given == {("512", "3")}


def test_blobs_are_where_all_find_them(tmp_path: Path) -> None:
    folder = tmp_path / "a fleet"
    found = plan(folder)
    programs = [*found.node_programs(URL), *found.gateway_programs(URL)]
    assert {one.env["STOKER_BLOB_URL"] for one in programs} == {
        f"file://{tmp_path}/a%20fleet/blobs"
    }
    assert {one.env["STOKER_DATABASE_URL"] for one in programs} == {URL}
    found = plan(folder, blob_url="s3://bucket/prefix")
    (bucket,) = {one.env["STOKER_BLOB_URL"] for one in found.gateway_programs(URL)}
    assert bucket == "s3://bucket/prefix"


def test_ports_follow_the_first_where_they_are_free(tmp_path: Path) -> None:
    with socket.socket() as first, socket.socket() as taken:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        # Else somebody has it, which is as good.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        whole = plan(tmp_path, gateways=2, port=port, metrics_port=9100)
        found = whole.gateway_programs(URL)
    assert [port_of(one) for one in found] == [str(port), "0"]
    assert [one.env["STOKER_METRICS_PORT"] for one in found] == ["9100", "9101"]
    of_nodes = [one.env["STOKER_METRICS_PORT"] for one in whole.node_programs(URL)]
    assert of_nodes == [str(9102 + number) for number in range(whole.nodes)]
    anywhere = plan(tmp_path, port=0).gateway_programs(URL)
    assert [port_of(one) for one in anywhere] == ["0", "0"]


def port_of(program: Program) -> str:
    return program.command[program.command.index("--port") + 1]


def test_what_ray_is_given(tmp_path: Path) -> None:
    """As much memory of each node as its host has, by the id of that host, and a secret that stands
    in no command line, where anybody could read it."""
    found = replace(plan(tmp_path, nodes=2, memory_budget_mib=512), has_ray=True)
    folders = [tmp_path / name for name in ("head", "one", "two")]
    programs = found.ray_programs(URL, "the token", 6379, folders)
    assert [one.name for one in programs] == ["ray-head", "ray-node-1", "ray-node-2", "placer"]
    hosts = found.node_programs(URL)
    for program, host in zip(programs[1:3], hosts, strict=True):
        assert host.state
        identifier = (host.state.parent / "node-id").read_text().strip()
        assert f"--labels=stoker-node={identifier}" in program.command
        assert f"--memory={512 * MIB}" in program.command
        assert "RAY_AUTH_TOKEN" not in host.env
    for one in programs:
        assert (one.env["RAY_AUTH_MODE"], one.env["RAY_AUTH_TOKEN"]) == ("token", "the token")
        assert "the token" not in " ".join(one.command)
    for one in (*hosts, *found.gateway_programs(URL)):
        assert one.env["STOKER_RUNTIME"] == "ray"


def test_another_command_is_to_start_ray(tmp_path: Path) -> None:
    kuberay = "ray start --address=head:6379 --block --num-cpus=2 --memory=1000"
    given: dict[str, Any] = {"node_id": "node_1", "memory_bytes": 5, "folder": tmp_path, "env": {}}
    found = ray.raylet("ray", "elsewhere:1", **given, start=kuberay)
    assert found.command == (
        *("-m", "ray.scripts.scripts", "start", "--address=head:6379", "--block", "--num-cpus=2"),
        *("--memory=1000", "--memory=5", "--labels=stoker-node=node_1"),
    )
    for wrong in ("sh -c true", "ray stop --block", "ray start --address=head:6379"):
        with pytest.raises(CliError, match="does not start Ray"):
            ray.raylet("ray", "elsewhere:1", **given, start=wrong)


def test_another_database_is_refused(tmp_path: Path) -> None:
    assert plan(tmp_path).given_database_url is None
    assert plan(tmp_path, database_url=URL).given_database_url == URL
    with pytest.raises(WrongUseError, match="needs a PostgreSQL"):
        _ = plan(tmp_path, database_url="sqlite+aiosqlite:///x.db").given_database_url
