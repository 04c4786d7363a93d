"""An attacker's code in a real replica of a real server achieves nothing.

Every attack is tried with root's server and with a plain user's server. A process of the same user
without walls also tries it, so that a test that cannot fail is noticed. Both servers serve only
this file. The attacker's code comes from a package that no other server may have, and one server
belongs to another user.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import stoker.demo
from stoker.cli import doctor
from stoker.sandbox import identity, landlock, probe, seccomp, walls
from tests.support import intruder
from tests.support.deploying import push, wait_for
from tests.support.server import Server, running

FOLDER = Path(intruder.__path__[0])
ATTACKS, PLAINLY = FOLDER / "attacks.py", FOLDER / "plainly.py"
ENCODER = Path(stoker.demo.__file__).parent / "models" / "tiny-encoder"
PATH = "/v1/toys/intrusion"
PLAIN_USER = 61_000
FIRST, LAST = 300_000, 300_999
KINDS = ("root", "plain")

no_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
no_scopes = pytest.mark.skipif(
    not landlock.scopes_signals(), reason="Landlock is too old here to know of signals"
)
no_filter = pytest.mark.skipif(not seccomp.is_known(), reason="there is no filter here")


@dataclass
class World:
    kind: str
    server: Server
    client: httpx.Client
    worker: Mapping[str, Any]
    neighbour: Mapping[str, Any]
    """A replica of another model."""
    python: str
    """An interpreter that runs as the server's user."""

    @property
    def pid(self) -> int:
        assert self.server.process
        return self.server.process.pid

    @property
    def host(self) -> int:
        return psutil.Process(self.worker["pid"]).ppid()

    @property
    def data(self) -> Path:
        return self.server.data_dir

    def folder(self, worker: Mapping[str, Any]) -> Path:
        """Returns the replica's own folder."""
        return next(Path(tempfile.gettempdir()).glob(f"stoker-*/{worker['id']}"))

    def in_replica(self, attack: str, given: object = None) -> str:
        order = json.dumps({"attack": attack, "given": given})
        answer = self.client.post(PATH, json={"model": "victim", "inputs": order})
        return answer.raise_for_status().json()["said"]

    def without_walls(self, attack: str, given: object = None) -> str:
        order = json.dumps({"attack": attack, "given": given})
        done = subprocess.run(
            [self.python, str(ATTACKS), order], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def fails(self, attack: str, given: object = None) -> None:
        """Checks that the attack fails inside the walls and succeeds outside them."""
        outcome = self.without_walls(attack, given)
        assert outcome.startswith("did:"), outcome
        self.is_refused(attack, given)

    def is_not_reached(self, socket: str) -> None:
        """Checks that the walls reject the connection. Without walls it is refused, because the
        replica is connected already and no process listens.
        """
        outcome = self.without_walls("connect_locally", socket)
        assert outcome.split()[:2] == ["refused:", "ECONNREFUSED"], outcome
        self.is_refused("connect_locally", socket)

    def is_refused(self, attack: str, given: object = None) -> None:
        outcome = self.in_replica(attack, given)
        assert outcome.split()[:2] in (["refused:", "EPERM"], ["refused:", "EACCES"]), outcome


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[str], World]]:
    made: dict[str, World] = {}
    with tempfile.TemporaryDirectory(prefix="walls-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        servers = list[Any]()

        def world(kind: str) -> World:
            if kind not in made:
                servers.append(_running(kind, folder))
                made[kind] = _world(kind, servers[-1].__enter__(), folder)
            return made[kind]

        try:
            yield world
        finally:
            for server in servers:
                server.__exit__(None, None, None)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> World:
    if os.geteuid() != 0 and request.param == "root":
        pytest.skip("the tests do not run as root")
    return worlds(request.param)


def _python(kind: str, folder: Path) -> str:
    if kind == "root" or os.geteuid() != 0:
        return sys.executable
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} {PLAINLY} {PLAIN_USER} {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def _running(kind: str, folder: Path) -> Any:
    user_folder = folder / kind
    user_folder.mkdir()
    if kind == "plain" and os.geteuid() == 0:
        os.chown(user_folder, PLAIN_USER, PLAIN_USER)
    return running(
        user_folder / "data",
        python=_python(kind, folder),
        PYTHONPATH=os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]),
        STOKER_REPLICA_UIDS=f"{FIRST}-{LAST}",
        STOKER_SECRET_OF_OURS="not for replicas",
        STOKER_CONVERT_AFTER_S="86400",
    )


def _world(kind: str, server: Server, folder: Path) -> World:
    client = server.account()
    server.wait_ready()
    workers = list[Any]()
    for model in ("victim", "neighbour"):
        artifact = push(client, ENCODER, pipeline="intrusion")["id"]
        body = {"model": model, "artifact_id": artifact, "readiness": "hot"}
        made = client.post("/v1/deployments", json=body).raise_for_status().json()
        workers += wait_for(client, made["id"], "ready")["workers"]
    return World(kind, server, client, *workers, _python(kind, folder))


class TestH3Files:
    pytestmark = no_landlock

    @pytest.mark.parametrize(
        "name", ["operator-key", "account-key", "server-secret", "stoker.db", "server.json"]
    )
    def test_the_servers_own(self, world: World, name: str) -> None:
        world.fails("read", str(world.data / name))
        world.fails("write", str(world.data / name))

    def test_what_lies_there(self, world: World) -> None:
        for path in (world.data, world.data / "blobs", world.data / "models", world.data / "logs"):
            world.fails("listing", str(path))

    def test_others_models(self, world: World) -> None:
        """Neither another model's folder nor the blobs that it links to can be read."""
        own_folder, other = world.folder(world.worker), world.folder(world.neighbour)
        assert own_folder != other
        models = sorted((world.data / "models").glob("*/config.json"))
        outcomes = [world.in_replica("read", str(model_path)) for model_path in models]
        assert sorted(model_path.split()[0] for model_path in outcomes) == ["did:", "refused:"]
        for path in models:
            blob = path.resolve()
            assert blob.is_relative_to(world.data)
            results = [
                world.in_replica("read", str(model_path)).split()[0] for model_path in (path, blob)
            ]
            assert results[0] == results[1]
            assert world.without_walls("read", str(blob)).startswith("did:")

    def test_its_own_model_cannot_be_written_to(self, world: World) -> None:
        for path in (world.data / "models").glob("*/model.safetensors"):
            world.fails("write", str(path))
            world.fails("create", str(path.with_name("more.bin")))

    def test_other_replicas(self, world: World) -> None:
        other = world.folder(world.neighbour)
        world.fails("listing", str(other))
        world.fails("write", str(other / "flight"))
        assert world.in_replica("write", str(world.folder(world.worker) / "flight")) == "did: open"

    def test_outside(self, world: World) -> None:
        world.fails("create", f"{tempfile.gettempdir()}/walls-were-here")
        world.fails("listing", tempfile.gettempdir())
        world.fails("read", "/etc/hostname")
        world.is_refused("read", "/etc/shadow")

    def test_no_links_or_pipes_for_the_server_to_fall_for(self, world: World) -> None:
        world.fails("link", "/etc/passwd")
        world.fails("pipe")

    @pytest.mark.parametrize("whose", ["pid", "host"])
    def test_environment_and_memory_of_the_server(self, world: World, whose: str) -> None:
        pid = getattr(world, whose)
        if world.kind == "root":
            world.fails("read", f"/proc/{pid}/environ")
            world.fails("look_into", pid)
        else:
            # Fails even without walls: the server hides them from all processes of its user.
            assert world.without_walls("read", f"/proc/{pid}/environ").startswith("refused:")
            world.is_refused("read", f"/proc/{pid}/environ")
            world.is_refused("look_into", pid)

    def test_another_replicas_memory(self, world: World) -> None:
        world.fails("look_into", world.neighbour["pid"])

    def test_what_is_open(self, world: World) -> None:
        descriptors = world.in_replica("descriptors").removeprefix("did: ").splitlines()
        allowed = ("/dev/null", "/dev/shm", "/memfd:", f"/proc/{world.worker['pid']}/fd")
        own_prefixes = ("/proc", f"{world.data}/logs/dep_", str(world.folder(world.worker)))
        assert [
            descriptor
            for descriptor in descriptors
            if not descriptor.startswith((*allowed, *own_prefixes))
        ] == []
        logs = [descriptor for descriptor in descriptors if descriptor.startswith(str(world.data))]
        assert len(logs) == 1

    def test_no_line_of_the_hosts_is_open(self, world: World) -> None:
        """The replica has no connection by which the server and its engine host exchange
        messages.
        """
        lines = [_lines(pid) for pid in (world.host, world.worker["pid"], world.neighbour["pid"])]
        host, replica, other = lines
        assert host
        assert replica
        assert not host & replica
        assert not replica & other


class TestH3Processes:
    @no_scopes
    @pytest.mark.parametrize("whose", ["server", "host", "neighbour"])
    def test_signals(self, world: World, whose: str) -> None:
        pids = {"server": world.pid, "host": world.host, "neighbour": world.neighbour["pid"]}
        world.fails("send_signal", pids[whose])
        world.fails("signal_group", pids[whose])

    @no_filter
    def test_limits_and_priorities(self, world: World) -> None:
        for attack in ("limit", "slow_down"):
            # The limits of another process require the right to trace it. Only root has it for the
            # server.
            if world.kind == "root" or attack == "slow_down":
                world.fails(attack, world.pid)
            world.is_refused(attack, world.pid)

    def test_who_it_is(self, world: World) -> None:
        credentials = json.loads(world.in_replica("identity").removeprefix("did: "))
        capabilities = int(credentials["CapEff"], 16)
        assert credentials["NoNewPrivs"] == "1"
        assert credentials["CapPrm"] == credentials["CapEff"]
        if seccomp.is_known():
            assert credentials["Seccomp"] == "2"
        if world.kind == "root":
            assert FIRST <= int(credentials["Uid"]) <= LAST
            assert int(credentials["Uid"]) != psutil.Process(world.neighbour["pid"]).uids().real
            # Needed to read root's model. Landlock restricts it further.
            assert capabilities == 1 << 2
            assert int(credentials["CapBnd"], 16) == 1 << 2
        else:
            assert capabilities == 0

    def test_how_many(self, world: World) -> None:
        """The number of processes is limited per replica. The comparison without walls runs only
        for root, because the kernel does not count root's processes.
        """
        assert world.in_replica("may_multiply") == f"did: {walls.most_processes()}"
        outcome = world.in_replica("multiply", 64)
        assert outcome.startswith("refused: EAGAIN"), outcome
        if world.kind == "root":
            assert world.without_walls("multiply", 64).startswith("did: 72 of")
        world.client.post(PATH, json={"model": "neighbour", "inputs": "{}"})
        assert world.in_replica("scratch") == "did: True hello"

    def test_what_it_knows(self, world: World) -> None:
        known = world.in_replica("environment").removeprefix("did: ").split()
        assert [name for name in known if name.startswith("STOKER_")] == []
        assert "STOKER_SECRET_OF_OURS" in psutil.Process(world.pid).environ()

    @pytest.mark.case(34)
    @no_filter
    @pytest.mark.parametrize(
        "attack", ["shared_memory", "semaphores", "messages", "message_queue", "memory_file"]
    )
    def test_memory_that_no_process_has(self, world: World, attack: str) -> None:
        world.fails(attack)

    @pytest.mark.case(34)
    def test_what_left_its_parent_ends(self, world: World) -> None:
        """A process in its own session that left its parent ends, and the replica continues."""
        child_pid = int(world.in_replica("left_behind").removeprefix("did: "))
        deadline = time.monotonic() + 30
        while psutil.pid_exists(child_pid) and psutil.Process(child_pid).status() != "zombie":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert psutil.pid_exists(world.worker["pid"])

    def test_nothing_outlives_it(self, world: World) -> None:
        """Processes that a replica leaves behind end with it, also in another session."""
        child_pid = int(world.in_replica("leave_behind").removeprefix("did: "))
        assert psutil.pid_exists(child_pid)
        folder = world.folder(world.worker)
        psutil.Process(world.worker["pid"]).kill()
        deadline = time.monotonic() + 30
        while psutil.pid_exists(child_pid) and psutil.Process(child_pid).status() != "zombie":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while folder.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        again = wait_for(world.client, _deployment(world, "victim")["id"], "ready")
        world.worker = again["workers"][0]


class TestH3Network:
    def test_the_servers_address(self, world: World) -> None:
        host, port = world.server.base_url.removeprefix("http://").split(":")
        world.fails("connect", [host, int(port)])

    def test_the_way_back(self, world: World) -> None:
        """The replica cannot enter the server's network namespace."""
        if world.kind == "root":
            world.fails("enter_network", world.pid)
            world.fails("set_namespace")
        world.is_refused("enter_network", world.pid)
        world.is_refused("set_namespace")

    def test_another_replicas_socket(self, world: World) -> None:
        path = str(world.folder(world.neighbour) / "socket")
        world.is_not_reached(path)
        world.is_refused("send_locally", path)

    def test_its_own_once_more(self, world: World) -> None:
        world.is_not_reached(str(world.folder(world.worker) / "socket"))


@no_filter
class TestH3SystemCalls:
    @pytest.mark.parametrize("attack", ["unshare", "trace", "ring", "keyring", "faults"])
    def test_are_refused(self, world: World, attack: str) -> None:
        world.fails(attack)

    def test_mounting(self, world: World) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            world.fails("mount", folder)

    def test_the_one_whose_arguments_no_filter_sees(self, world: World) -> None:
        assert world.without_walls("clone3") == "did: asked"
        assert world.in_replica("clone3").startswith("refused: ENOSYS")


_WITHOUT = """\
import errno, sys
from stoker.sandbox import kernel, network, probe
ask = kernel.syscall
def refused(number, *given):
    if number in {numbers}:
        raise OSError(errno.ENOSYS, "not there")
    return ask(number, *given)
kernel.syscall = refused
if {is_alone}:
    network.leave = lambda: (False, False)
probe.main()
"""


class TestDoctor:
    """Results of `stoker doctor` when it sets up the walls."""

    def test_the_walls_of_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STOKER_REPLICA_UIDS", f"{FIRST}-{LAST}")
        checks = {check.name: check for check in doctor._walls()}
        names = {f"wall: {name}" for name in probe.NAMES}
        assert set(checks) == names | ({"wall: user"} if os.geteuid() == 0 else set())
        if landlock.scopes_signals() and seccomp.is_known():
            assert {check.status for check in checks.values()} == {"ok"}

    @pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
    def test_root_without_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STOKER_REPLICA_UIDS", "")
        checks = {check.name: check for check in doctor._walls() if check.status != "ok"}
        assert set(checks) == {"wall: user", "wall: processes"}
        assert checks["wall: user"].hint == doctor.WALLS["user"]

    @pytest.mark.parametrize(
        ("numbers", "is_alone", "missing"),
        [
            # Without Landlock.
            ({444}, False, {"files"}),
            # Without seccomp.
            ({seccomp.NUMBER}, False, {"system calls", "sockets"}),
            # Without both and without namespaces, as in many containers.
            (
                {444, seccomp.NUMBER},
                True,
                {"files", "network", "system calls", "sockets", "signals", "processes"},
            ),
        ],
    )
    def test_a_machine_that_lacks_some(
        self, numbers: set[int], is_alone: bool, missing: set[str]
    ) -> None:
        """Missing walls are reported for a plain user, who has no separate users for replicas."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            code = _WITHOUT.format(numbers=numbers, is_alone=is_alone)
            done = subprocess.run(
                [_python("plain", Path(folder)), "-c", code],
                capture_output=True,
                text=True,
                check=True,
            )
        reported = {name for name, why in json.loads(done.stdout).items() if why}
        assert reported == missing


class TestUsers:
    def test_a_range_that_does_not_exist_here(self) -> None:
        assert identity.is_mapped(0, 0)
        assert not identity.is_mapped((1 << 32) - 2, (1 << 33))


def _lines(pid: int) -> set[str]:
    """Returns the sockets and pipes that a process has open."""
    targets = {os.readlink(target) for target in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
    return {target for target in targets if target.startswith(("socket:", "pipe:"))}


def _deployment(world: World, model: str) -> Any:
    deployments = world.client.get("/v1/deployments").raise_for_status().json()["data"]
    return next(listed for listed in deployments if listed["model"] == model)
