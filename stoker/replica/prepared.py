"""A prepared worker: a process with its walls and a CUDA context, which waits to become a replica.

The walls are set up before CUDA starts, because they apply only to one thread and its later
children.
"""

import logging
import select
import socket
import sys

import msgspec

from stoker.replica import graphics, walls
from stoker.replica import main as replica
from stoker.replica.preparation.parent import PreparationParent, fork_parent
from stoker.replica.preparation.permits import Permits
from stoker.replica.worker_sockets import READY, TAKEN, receive
from stoker.wire.protocol import ReplicaSpec, WorkerSpec

log = logging.getLogger(__name__)

CHECK_S = 30.0
"""Seconds between two checks of the waiting worker's context."""


def run(spec: WorkerSpec, channel: socket.socket, permits: Permits) -> int:
    """Opens the context, waits, and serves as the replica. Returns the process's exit code.

    Args:
        channel: socket to the engine host.
        permits: permits for preparation processes.
    """
    logging.basicConfig(
        level=logging.INFO,
        force=True,
        stream=sys.stderr,
        format=f"%(asctime)s {spec.id} %(levelname)s %(name)s: %(message)s",
    )
    has_context = spec.device != "cpu"
    graphics.restrict(spec)
    walls.around_worker(spec)
    # Before CUDA, which does not survive a fork.
    most = spec.preparation_processes
    preparation = fork_parent(most, permits) if most else None
    if has_context and (problem := graphics.open_context()):
        channel.send(problem.encode())
        return 0
    channel.send(READY)
    while True:
        is_called, _, _ = select.select([channel], [], [], CHECK_S)
        if has_context and (problem := graphics.context_problem()):
            # No specification is taken any more, so the host forks the replica instead.
            log.warning("the context of a prepared worker is lost: %s", problem)
            return 1
        if is_called:
            return _become_replica(channel, preparation)


def _become_replica(channel: socket.socket, preparation: PreparationParent | None) -> int:
    message = receive(channel)
    if message is None:
        return 0
    content, log_descriptor = message
    spec = msgspec.msgpack.decode(content, type=ReplicaSpec)
    channel.send(TAKEN)
    channel.close()
    return replica.take_over(spec, log_descriptor, preparation)
