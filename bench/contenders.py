"""Contenders of a benchmark: Stoker in each dtype, and each peer in its fastest dtype."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import dtypes, load
from bench.common import Plan, Report, clients_of
from bench.load import Contender
from bench.peers import servers
from bench.peers.environments import NotMadeError
from bench.peers.servers import PeerServer
from bench.service import Service
from bench.workloads import OURS, Peer, Workload
from stoker.wire.protocol import Execution

TRIAL_S, QUICK_S = 6, 2
"""Seconds of a trial of each dtype of a peer, and of a first load that is not counted. The second
value is for quick runs.
"""
TRIAL_CLIENTS = 16

_PEERS: Mapping[Peer, Callable[[Path, str, str], PeerServer]] = {
    "fastapi": servers.fastapi,
    "litserve": servers.litserve,
    "infinity": servers.infinity,
    "sie": servers.sie,
}


@dataclass(frozen=True)
class Scene:
    """Common inputs of all measurements in one benchmark."""

    report: Report
    plan: Plan
    workload: Workload
    folder: Path
    bodies: Sequence[Mapping[str, Any]]
    place: Path

    def encoded(self, contender: Contender) -> list[bytes]:
        return contender.encoded(self.bodies)

    @property
    def trial_clients(self) -> int:
        return self.plan.sized(TRIAL_CLIENTS, 4)

    def trial_s(self, alone_s: float) -> int:
        """Returns the duration of a trial in seconds. `alone_s` is the duration of a single
        request.
        """
        seconds = self.plan.sized(TRIAL_S, QUICK_S)
        return load.enough_s(seconds, self.trial_clients, alone_s)


def at_work(service: Service, path: str, model: str, name: str = OURS) -> Contender:
    """Returns a model of Stoker as a contender, regardless of how it runs."""
    url, body = service.base_url, {"model": model}
    return Contender(name, service.pid, url, path, body, service.key, is_suspended=False)


def of_ours(scene: Scene, service: Service, dtype: str) -> tuple[Contender, Execution | None]:
    """Returns Stoker in a dtype with its final configuration, and its conversion, if any.

    Raises `RuntimeError` if it cannot run in this dtype.
    """
    wish = {} if dtype == "auto" else {"dtype": dtype}
    model = "-".join(["measured", *wish.values()])
    workload = scene.workload
    deployment = service.deploy(scene.folder, model, workload.pipeline, readiness="hot", **wish)
    contender = at_work(service, workload.path, model, ", ".join([OURS, *wish.values()]))
    try:
        return contender, service.settle(deployment, workload.path, scene.encoded(contender))
    except RuntimeError:
        # Otherwise its starts would be retried while others are measured.
        service.api.delete(f"/v1/deployments/{deployment}").raise_for_status()
        raise


def in_other_dtypes(scene: Scene, service: Service) -> Iterator[Contender]:
    """Yields Stoker in each dtype that must be requested. Dtypes that it cannot run are left
    out.
    """
    settings = scene.report.settings
    own_dtype = settings[OURS]["dtype"] = dtypes.of_ours(scene.folder)
    for dtype in dtypes.ours():
        if dtype == own_dtype:
            continue
        try:
            yield of_ours(scene, service, dtype)[0]
        except RuntimeError as error:
            scene.report.left_out(f"{OURS}, {dtype}", error)


def of_peer(scene: Scene, stack: contextlib.ExitStack, peer: Peer) -> Iterator[Contender]:
    """Yields a peer in its fastest dtype. Yields nothing if the peer is not available.

    If the workload requests it, first yields the peer in float32.
    """
    start, pipeline = _PEERS[peer], scene.workload.pipeline

    def rate(dtype: str) -> float:
        with _running(scene, start(scene.folder, pipeline, dtype)) as contender:
            seconds = scene.trial_s(warmed_up(scene, contender))
            encoded = scene.encoded(contender)
            trial = load.measured(contender, encoded, scene.trial_clients, seconds)
        if trial.found.failed:
            raise RuntimeError(trial.found.failure)
        return trial.rate

    try:
        server = start(scene.folder, pipeline, dtypes.FLOAT32)
        unit = f"req/s, {clients_of(scene.trial_clients)}"
        dtype = dtypes.best(scene.report, server.name, unit, rate)
        if scene.workload.in_float32 and dtype != dtypes.FLOAT32:
            exact = replace(server, name=f"{server.name}, {dtypes.FLOAT32}")
            scene.report.settings[exact.name] = {"dtype": dtypes.FLOAT32}
            yield stack.enter_context(_running(scene, exact))
        server = start(scene.folder, pipeline, dtype)
        yield stack.enter_context(_running(scene, server))
    except (NotMadeError, RuntimeError) as error:
        scene.report.left_out(peer, error)


@contextlib.contextmanager
def _running(scene: Scene, server: PeerServer) -> Generator[Contender]:
    with servers.started(scene.report, server, scene.place) as running:
        yield Contender(server.name, running.pid, running.base_url, server.path, server.body)


def warmed_up(scene: Scene, contender: Contender) -> float:
    """Warms up a contender. Returns the seconds of a single request afterwards. Raises
    `RuntimeError` if no request succeeds.
    """
    encoded = scene.encoded(contender)
    seconds = scene.trial_s(load.alone_s(contender, encoded))
    load.measured(contender, encoded, scene.trial_clients, seconds)
    return load.alone_s(contender, encoded)


@contextlib.contextmanager
def left_out(report: Report, contenders: list[Contender], one: Contender) -> Generator[None]:
    """Continues without a peer that fails. A failure of Stoker is raised."""
    try:
        yield
    except RuntimeError as error:
        if not one.is_suspended:
            raise
        contenders.remove(one)
        report.left_out(one.name, error)
