"""Commands and environments of a fleet's processes."""

import contextlib
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB, Settings
from stoker.client.errors import StokerError, WrongUseError
from stoker.cluster import ray
from stoker.cluster.member import Program
from stoker.cluster.plan import FleetPlan
from stoker.runtime.machine_memory import SHARE, machine_bytes

URL = "postgresql+asyncpg://stoker@127.0.0.1:9/stoker"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [variable for variable in os.environ if variable.startswith("STOKER_")]:
        monkeypatch.delenv(name)


def plan(data_dir: Path, nodes: int = 2, gateways: int = 2, **given: Any) -> FleetPlan:
    settings = Settings(_env_file=None, data_dir=data_dir, **given)  # type: ignore[call-arg]
    return FleetPlan(settings=settings, nodes=nodes, gateways=gateways)


def test_nodes_share_memory_and_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    for count in (1, 3, 2 * cores):
        programs = plan(tmp_path, count).node_programs(URL)
        assert len({program.state for program in programs}) == count
        for program in programs:
            mib = int(program.env["STOKER_MEMORY_BUDGET_MIB"])
            assert mib == pytest.approx(machine_bytes() * SHARE / MIB / count, abs=1)
            assert program.env["STOKER_REPLICA_THREADS"] == str(max(1, cores // count))


def test_what_is_set_is_for_each_node(tmp_path: Path) -> None:
    node_programs = plan(tmp_path, memory_budget_mib=512, replica_threads=3).node_programs(URL)
    values = {
        (program.env["STOKER_MEMORY_BUDGET_MIB"], program.env["STOKER_REPLICA_THREADS"])
        for program in node_programs
    }
    assert values == {("512", "3")}


def test_blobs_are_where_all_find_them(tmp_path: Path) -> None:
    folder = tmp_path / "a fleet"
    fleet_plan = plan(folder)
    programs = [*fleet_plan.node_programs(URL), *fleet_plan.gateway_programs(URL)]
    assert {program.env["STOKER_BLOB_URL"] for program in programs} == {
        f"file://{tmp_path}/a%20fleet/blobs"
    }
    assert {program.env["STOKER_DATABASE_URL"] for program in programs} == {URL}
    fleet_plan = plan(folder, blob_url="s3://bucket/prefix")
    (bucket,) = {program.env["STOKER_BLOB_URL"] for program in fleet_plan.gateway_programs(URL)}
    assert bucket == "s3://bucket/prefix"


def test_ports_follow_the_first_where_they_are_free(tmp_path: Path) -> None:
    with socket.socket() as first, socket.socket() as occupied:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        # If binding fails, another process uses the port, which serves the test as well.
        with contextlib.suppress(OSError):
            occupied.bind(("127.0.0.1", port + 1))
        occupied.listen()
        whole = plan(tmp_path, gateways=2, port=port, metrics_port=9100)
        gateway_programs = whole.gateway_programs(URL)
    assert [port_of(program) for program in gateway_programs] == [str(port), "0"]
    assert [program.env["STOKER_METRICS_PORT"] for program in gateway_programs] == ["9100", "9101"]
    of_nodes = [program.env["STOKER_METRICS_PORT"] for program in whole.node_programs(URL)]
    assert of_nodes == [str(9102 + number) for number in range(whole.nodes)]
    anywhere = plan(tmp_path, port=0).gateway_programs(URL)
    assert [port_of(program) for program in anywhere] == ["0", "0"]


def port_of(program: Program) -> str:
    return program.command[program.command.index("--port") + 1]


def test_what_ray_is_given(tmp_path: Path) -> None:
    """Ray's nodes receive their hosts' memory and ids.

    The secret is in no command line, which any user could read.
    """
    fleet_plan = replace(plan(tmp_path, nodes=2, memory_budget_mib=512), has_ray=True)
    folders = [tmp_path / name for name in ("head", "one", "two")]
    programs = fleet_plan.ray_programs(URL, "the token", 6379, folders)
    assert [member.name for member in programs] == [
        "ray-head",
        "ray-node-1",
        "ray-node-2",
        "placer",
    ]
    hosts = fleet_plan.node_programs(URL)
    for program, host in zip(programs[1:3], hosts, strict=True):
        assert host.state
        identifier = (host.state.parent / "node-id").read_text().strip()
        assert f"--labels=stoker-node={identifier}" in program.command
        assert f"--memory={512 * MIB}" in program.command
        assert "RAY_AUTH_TOKEN" not in host.env
    for member in programs:
        assert (member.env["RAY_AUTH_MODE"], member.env["RAY_AUTH_TOKEN"]) == ("token", "the token")
        assert "the token" not in " ".join(member.command)
    for member in (*hosts, *fleet_plan.gateway_programs(URL)):
        assert member.env["STOKER_RUNTIME"] == "ray"


def test_another_command_is_to_start_ray(tmp_path: Path) -> None:
    kuberay = "ray start --address=head:6379 --block --num-cpus=2 --memory=1000"
    options: dict[str, Any] = {
        "node_id": "node_1",
        "memory_bytes": 5,
        "folder": tmp_path,
        "env": {},
    }
    program = ray.raylet("ray", "elsewhere:1", **options, start=kuberay)
    assert program.command == (
        *("-m", "ray.scripts.scripts", "start", "--address=head:6379", "--block", "--num-cpus=2"),
        *("--memory=1000", "--memory=5", "--labels=stoker-node=node_1"),
    )
    for wrong in ("sh -c true", "ray stop --block", "ray start --address=head:6379"):
        with pytest.raises(StokerError, match="does not start Ray"):
            ray.raylet("ray", "elsewhere:1", **options, start=wrong)


def test_another_database_is_refused(tmp_path: Path) -> None:
    assert plan(tmp_path).given_database_url is None
    assert plan(tmp_path, database_url=URL).given_database_url == URL
    with pytest.raises(WrongUseError, match="needs a PostgreSQL"):
        _ = plan(tmp_path, database_url="sqlite+aiosqlite:///x.db").given_database_url
