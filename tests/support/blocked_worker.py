"""A fleet with one HTTP worker that blocks its event loop when a request arrives.

`python -m tests.support.blocked_worker FUNCTION` runs until it is killed.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

from stoker.base import logs
from stoker.base.config import Settings
from stoker.server.edge.connections import Connections
from stoker.server.edge.limits import EdgeLimits
from stoker.server.workers import fleet as fleets
from stoker.server.workers.fleet import WorkerFleet
from stoker.server.workers.host import WorkerHost
from stoker.server.workers.process import HttpWorker

REQUEST = b"POST / HTTP/1.1\r\n\r\n"


def computes(*_: object) -> None:
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        pass


def hangs(*_: object) -> None:
    while True:
        time.sleep(60)


def stops(*_: object) -> None:
    """Stops the process, so that it handles no signals."""
    os.kill(os.getpid(), signal.SIGSTOP)


async def main(host: WorkerHost, settings: Settings) -> None:
    checks: Any = SimpleNamespace(traces=None)
    metrics: Any = SimpleNamespace(add=lambda _: None)
    connections = Connections(EdgeLimits.of(settings, 1000))
    fleet = WorkerFleet(1, host, checks=checks, members=connections, metrics=metrics, paths=())
    fleet.start(lambda connection, _: connection.end())
    while True:
        client, remote = socket.socketpair()
        client.sendall(REQUEST)
        if not fleet.give(remote, "127.0.0.1"):
            remote.close()
        await asyncio.sleep(0.5)
        client.close()


if __name__ == "__main__":
    HttpWorker.read_head = globals()[sys.argv[1]]
    fleets._CHECK_S, fleets._SILENCE_S = 0.1, 1.0  # type: ignore[misc]
    of_script = Settings(log_format="json")
    its_host = WorkerHost.fork(of_script)
    logs.configure(of_script.log_level, of_script.log_format)
    asyncio.run(main(its_host, of_script))
