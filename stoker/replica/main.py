"""A replica: one process, one model. Runs in the child that the engine host has forked."""

import logging
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from stoker import sandbox
from stoker.replica.failures import load_failure
from stoker.replica.serving import Serving, serving
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import (
    Adopt,
    Calibrated,
    Cancel,
    FromReplica,
    Generate,
    Heartbeat,
    Loaded,
    Loading,
    ReplicaSpec,
    Shutdown,
    ToReplica,
    Work,
    unpack,
)

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
WEIGHING_S = 5.0
"""Between measurements of memory: the kernel walks every page, 12 ms of a core for BERT-base."""
_COPY_BELOW = 65536

_encode = msgspec.msgpack.Encoder().encode


def run(spec: ReplicaSpec) -> int:
    """Load the model and serve until told to stop. Returns the process's exit code."""
    configure_log(spec.id, spec.log_path)
    sandbox.confine()
    # Threads take turns more often than every 5 ms: requests are that short.
    sys.setswitchinterval(0.001)
    with zmq.Context() as context:
        link = Link(context, spec.address)
        try:
            return _serve(spec, link)
        finally:
            link.close()


def _serve(spec: ReplicaSpec, link: "Link") -> int:
    started = time.perf_counter()
    try:
        worker = _load(spec, link)
    except Exception as error:
        log.exception("the model could not be loaded")
        link.send_now(load_failure(error))
        return 0
    worker.start()
    link.send_now(Loaded(time.perf_counter() - started, worker.convertible, worker.sharing))
    next_beat = next_weighing = 0.0
    memory = Weight()
    while True:
        for message in link.receive(timeout_s=max(0.0, next_beat - time.monotonic())):
            match message:
                case Work() | Generate():
                    worker.submit(message)
                case Cancel():
                    worker.cancel(message.id)
                case Adopt():
                    worker.adopt(message.execution)
                case Shutdown():
                    worker.stop()
                    link.flush()
                    link.send_now(_heartbeat(worker, memory))
                    return 0
        if not worker.alive and not worker.accepted:
            # All have been told why; the gateway starts another replica in this one's place.
            link.flush()
            return 1
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + HEARTBEAT_S
            if time.monotonic() >= next_weighing:
                next_weighing = time.monotonic() + WEIGHING_S
                memory = weigh((os.getpid(), *worker.children))
            link.send_now(_heartbeat(worker, memory))
            if news := worker.measured():
                link.send_now(Calibrated(*news))


def _heartbeat(worker: Serving, memory: "Weight") -> Heartbeat:
    return Heartbeat(
        worker.counters.progress,
        worker.accepted,
        memory.proportional,
        memory.own,
        worker.counters.busy_s,
        worker.engine,
        worker.cache_usage,
        worker.counters.batches,
    )


def _load(spec: ReplicaSpec, link: "Link") -> Serving:
    def progress(fraction: float, stage: str) -> None:
        link.send_now(Loading(fraction, stage))

    return serving(spec, link.send, FlightRecord(Path(spec.flight_path)), progress)


class Link:
    """The socket to the gateway. Only its owner's thread touches it; others queue and wake it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 2000)
        # The gateway bounds what is outstanding; a limit here would only block the owner.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._outbox: deque[tuple[FromReplica, bytes | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)

    def send(self, message: FromReplica, content: bytes | None = None) -> None:
        """Queue a message, from any thread."""
        self._outbox.append((message, content))
        os.eventfd_write(self._wake, 1)

    def send_now(self, message: FromReplica, content: bytes | None = None) -> None:
        """Send from the owner's thread."""
        frames = [_encode(message)] if content is None else [_encode(message), content]
        # Handing over a buffer costs more than copying a small one.
        self._socket.send_multipart(frames, copy=len(frames[-1]) < _COPY_BELOW)

    def flush(self) -> None:
        while self._outbox:
            self.send_now(*self._outbox.popleft())

    def receive(self, timeout_s: float) -> list[ToReplica]:
        """Send what is queued and return what has come, waiting at most `timeout_s`."""
        events = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._wake in events:
            os.eventfd_read(self._wake)
        self.flush()
        messages: list[ToReplica] = []
        while self._socket in events:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            messages.append(unpack(frames))
        return messages

    def close(self) -> None:
        self._socket.close()


def configure_log(name: str, path: str) -> None:
    """Send what this process prints and logs to a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    logging.basicConfig(
        level=logging.INFO,
        force=True,
        stream=sys.stderr,
        format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s",
    )
    logging.info("starting, pid %d", os.getpid())


class Weight(NamedTuple):
    """Bytes of memory."""

    proportional: int = 0
    """Pages shared with the host and others count by their share."""
    own: int = 0
    """Pages that nobody else has."""


def weigh(processes: Iterable[int]) -> Weight:
    """All of them together; those that have ended count nothing."""
    sizes: Counter[str] = Counter()
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            log.debug("no smaps_rollup")
            continue
        for line in lines[1:]:
            name, size, *_ = line.split()
            sizes[name] += int(size) * 1024
    return Weight(sizes["Pss:"], sizes["Private_Clean:"] + sizes["Private_Dirty:"])


def ignore_interrupts() -> None:
    """A terminal's Ctrl-C reaches the whole group; the gateway decides when replicas end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
