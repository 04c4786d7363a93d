"""Tests of the host's sockets to prepared workers."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.base.config import Settings
from stoker.replica.main import open_log
from stoker.replica.worker_sockets import READY, TAKEN, WorkerSockets, receive
from stoker.wire.host_messages import WorkerReport
from stoker.wire.protocol import Cell, ReplicaSpec


def spec(log: Path, replica_id: str = "rep_1") -> ReplicaSpec:
    return ReplicaSpec(
        id=replica_id,
        pipeline="text-classification",
        model_dir="/models",
        address="/socket",
        log_path=str(log),
        flight_path="/flight",
        engine="torch",
        device="cuda",
        visible_devices="GPU-1",
        dtype="float32",
        threads=1,
        batch_budgets={"torch": 8},
        limits=Settings(data_dir=log.parent).media_limits,
        cell=Cell("/cell", None, "/data"),
        secret_path="/secret",
        # Larger than a message of the socket.
        options={"prompt": "x" * 1_000_000},
    )


class World:
    def __init__(self, folder: Path) -> None:
        self.log = folder / "dep_1.log"
        self.sockets = WorkerSockets()
        self.worker = self.sockets.add("work_1")

    def assign(self, worker_id: str = "work_1") -> bool:
        return self.sockets.assign(worker_id, spec(self.log), open_log)

    def read(self) -> list[WorkerReport]:
        events = [self.sockets.read(descriptor) for descriptor in self.sockets]
        return [event for event in events if event]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.sockets.close_all()
    world.worker.close()


def test_a_worker_waits_and_gets_specification_and_log(world: World):
    world.worker.send(READY)
    assert world.read() == [WorkerReport("work_1")]
    assert world.assign()
    message = receive(world.worker)
    assert message
    content, log_descriptor = message
    assert msgspec.msgpack.decode(content, type=ReplicaSpec) == spec(world.log)
    os.write(log_descriptor, b"hello")
    os.close(log_descriptor)
    assert world.log.read_text() == "hello"
    world.worker.send(TAKEN)
    assert world.read() == []
    assert [*world.sockets] == []
    assert world.sockets.forget("rep_1") is None


def test_a_problem_is_reported(world: World):
    world.worker.send(b"no memory is left")
    assert world.read() == [WorkerReport("work_1", "no memory is left")]
    assert not world.assign()


def test_a_worker_that_has_ended_takes_nothing(world: World):
    world.worker.close()
    assert not world.assign()
    assert [*world.sockets] == []


def test_no_worker_takes_two(world: World):
    assert world.assign() and not world.assign()
    assert not world.assign("work_2")


@pytest.mark.parametrize("has_read", [False, True])
def test_a_specification_that_was_not_taken_is_returned(world: World, has_read: bool):
    assert world.assign()
    if has_read:
        receive(world.worker)
    world.worker.close()
    world.read()
    assert world.sockets.forget("rep_1") == spec(world.log)
    assert world.sockets.forget("rep_1") is None


def test_one_that_was_taken_just_now_is_not_returned(world: World):
    assert world.assign()
    receive(world.worker)
    world.worker.send(TAKEN)
    world.worker.close()
    assert world.sockets.forget("rep_1") is None


def test_the_end_of_the_host_is_no_specification(world: World):
    world.sockets.close_all()
    assert receive(world.worker) is None


def test_a_log_that_cannot_be_opened_leaves_the_worker_alone(world: World):
    world.log = world.log.parent / "missing" / "dep_1.log"
    assert not world.assign()
    with pytest.raises(OSError, match="Broken pipe"):
        world.worker.send(READY)


def test_sockets_are_not_inherited_by_programs(world: World):
    descriptors: list[Any] = [*world.sockets, world.worker.fileno()]
    assert not any(map(os.get_inheritable, descriptors))
    assert world.worker.type == socket.SOCK_SEQPACKET
