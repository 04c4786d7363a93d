"""Who is measured: ours in each dtype, and each peer in its best one."""

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
"""Of each dtype of a peer, and of a first load that is not counted."""
TRIAL_CLIENTS = 16

_PEERS: Mapping[Peer, Callable[[Path, str, str], PeerServer]] = {
    "fastapi": servers.fastapi,
    "litserve": servers.litserve,
    "infinity": servers.infinity,
}


@dataclass(frozen=True)
class Scene:
    """What all that is measured in one benchmark has in common."""

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
        """How long a trial is for whom a request takes so long."""
        seconds = self.plan.sized(TRIAL_S, QUICK_S)
        return load.enough_s(seconds, self.trial_clients, alone_s)


def at_work(service: Service, path: str, model: str, name: str = OURS) -> Contender:
    """A model of ours, however it runs."""
    url, body = service.base_url, {"model": model}
    return Contender(name, service.pid, url, path, body, service.key, is_suspended=False)


def of_ours(scene: Scene, service: Service, dtype: str) -> tuple[Contender, Execution | None]:
    """Ours in a dtype, as it runs once it has settled, and on what, if it was converted.

    Raises `RuntimeError` where it cannot run so.
    """
    wish = {} if dtype == "auto" else {"dtype": dtype}
    model = "-".join(["measured", *wish.values()])
    workload = scene.workload
    deployment = service.deploy(scene.folder, model, workload.pipeline, readiness="hot", **wish)
    contender = at_work(service, workload.path, model, ", ".join([OURS, *wish.values()]))
    try:
        return contender, service.settle(deployment, workload.path, scene.encoded(contender))
    except RuntimeError:
        # It would be tried again and again beside the others.
        service.api.delete(f"/v1/deployments/{deployment}").raise_for_status()
        raise


def in_other_dtypes(scene: Scene, service: Service) -> Iterator[Contender]:
    """Ours in each that it computes in only where it is asked to. What it cannot is left out."""
    settings = scene.report.settings
    own = settings[OURS]["dtype"] = dtypes.of_ours(scene.folder)
    for dtype in dtypes.ours():
        if dtype == own:
            continue
        try:
            yield of_ours(scene, service, dtype)[0]
        except RuntimeError as error:
            scene.report.left_out(f"{OURS}, {dtype}", error)


def of_peer(scene: Scene, stack: contextlib.ExitStack, peer: Peer) -> Iterator[Contender]:
    """A peer in the dtype that is the best for it; nothing where it cannot be had.

    Before that in float32, where the workload asks for that, too.
    """
    start, pipeline = _PEERS[peer], scene.workload.pipeline

    def rate(dtype: str) -> float:
        with _running(scene, start(scene.folder, pipeline, dtype)) as contender:
            seconds = scene.trial_s(warmed_up(scene, contender))
            asked = scene.encoded(contender)
            trial = load.measured(contender, asked, scene.trial_clients, seconds)
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
    """How long a client alone waits then. Raises RuntimeError where nothing is answered."""
    asked = scene.encoded(contender)
    seconds = scene.trial_s(load.alone_s(contender, asked))
    load.measured(contender, asked, scene.trial_clients, seconds)
    return load.alone_s(contender, asked)


@contextlib.contextmanager
def left_out(report: Report, contenders: list[Contender], one: Contender) -> Generator[None]:
    """Go on without a peer that fails. Ours must not."""
    try:
        yield
    except RuntimeError as error:
        if not one.is_suspended:
            raise
        contenders.remove(one)
        report.left_out(one.name, error)
