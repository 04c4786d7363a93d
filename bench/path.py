"""Processor time of a request by stage, in the gateway and in the replica."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import streams, wrk
from bench.common import RESULTS, Plan, Report, at_most, clients_of, cores, progress, scratch
from bench.path_calls import CALLS, DIFFERENT, PathCall
from bench.path_profile import RATE_HZ, cpu_seconds, profile, threads_since, undisturbed
from bench.path_stages import (
    GATEWAY,
    PASS,
    REPLICA,
    Row,
    Sample,
    Thread,
    parse,
    shares,
    unmatched,
    weighed,
)
from bench.processes import ENGINE_HOST, tree
from bench.service import Service, serving

MODEL = "measured"
CLIENTS = (1, 16, 64)
PROFILED = 16
"""Number of clients of the profiles."""
LOAD_S, PROFILE_S, WARM_S, IDLE_S = 3, 4, 2, 3
MOST_STREAMS = 4000
"""Maximum number of streams in a load."""
SIDES: Mapping[str, Sequence[Row]] = {"gateway": GATEWAY, "replica": REPLICA}
REQUEST_AIM, TOKEN_AIM = 250, 25
"""Most processor time in microseconds of a request in a process, and of a token in the gateway."""
LISTED = 8
"""Number of frames without a stage that the notes list."""


@dataclass(frozen=True)
class Spent:
    """Processor time in seconds: user and system, of each side."""

    user: Counter[str]
    system: Counter[str]

    def total(self, side: str) -> float:
        return self.user[side] + self.system[side]


@dataclass(frozen=True)
class Answered:
    units: int
    """Number of requests or tokens."""
    seconds: float

    @property
    def rate(self) -> float:
        return self.units / self.seconds


@dataclass(frozen=True)
class Profile:
    """Samples of a side, and the processor time of its threads without the profiler."""

    samples: Sequence[Sample]
    threads: Mapping[int, Thread]
    folded: str
    """Samples as the profiler wrote them."""

    def weighed(self, side: str) -> Iterator[tuple[str, str, float]]:
        return weighed(self.samples, self.threads, SIDES[side])


@dataclass(frozen=True)
class Scene:
    report: Report
    plan: Plan
    call: PathCall
    service: Service
    bodies: Sequence[bytes]
    place: Path

    def load(self, clients: int, seconds: int) -> Answered:
        """Runs clients in closed loops. Raises `RuntimeError` if a request fails."""
        url, key = self.service.base_url + self.call.path, self.service.key
        label = clients_of(clients)
        if self.call.tokens:
            bodies = [self.bodies[at % len(self.bodies)] for at in range(MOST_STREAMS)]
            streamed = streams.load(url, key, bodies, clients, self.call.tokens, seconds)
            self.report.client.add(label, streamed.client_cpu_s, streamed.seconds)
            return Answered(streamed.tokens, streamed.seconds)
        result = wrk.run(url, key, self.bodies, clients, seconds)
        if result.failed or not result.answered:
            raise RuntimeError(f"requests failed: {result.failure}")
        self.report.client.add(label, result.cpu_seconds, result.seconds)
        return Answered(result.answered, result.seconds)


def of(name: str) -> Callable[[Plan], Report]:
    """Returns the benchmark of a call."""
    return lambda plan: run(name, CALLS[name], plan)


def run(name: str, call: PathCall, plan: Plan) -> Report:
    report = Report(name, f"processor time of {call.title}, by stage")
    report.client.name = "Python" if call.tokens else wrk.version()
    with scratch() as place, serving(report, place / "ours", workers=1) as service:
        bodies = [
            json.dumps({"model": MODEL, **body}).encode()
            for body in call.bodies(plan.sized(DIFFERENT, 8))
        ]
        settle(service, call)
        scene = Scene(report, plan, call, service, bodies, place)
        idle = _idle(service, plan)
        for clients in plan.sized(CLIENTS, (PROFILED,)):
            scene.load(clients, WARM_S)
        profiles: dict[str, list[Profile]] = {side: [] for side in SIDES}
        for number in range(plan.rounds):
            threads: Mapping[str, Mapping[int, Thread]] = {}
            for clients in plan.sized(CLIENTS, (PROFILED,)):
                of_load = _measure(scene, clients, idle)
                threads = of_load if clients == PROFILED else threads
            for side, taken in profiles.items():
                folded = _profile(scene, side, is_first=number == 0)
                taken.append(Profile(parse(folded), threads[side], folded))
                _add_stages(scene, side, taken[-1])
            progress(f"round {number + 1} of {plan.rounds} done")
    _describe(report, call, profiles, RESULTS / "quick" if plan.quick else RESULTS)
    return report


def settle(service: Service, call: PathCall) -> None:
    """Deploys a call's model, and sends work until it has its final configuration."""
    wish = {"readiness": "hot", **(call.wish or {})}
    deployment = service.deploy(call.folder(), MODEL, call.pipeline, **wish)
    whole = {"stream": False} if call.tokens else {}
    bodies = [{"model": MODEL, **body, **whole} for body in call.bodies(DIFFERENT)]
    service.settle(deployment, call.path, [json.dumps(body).encode() for body in bodies])


def _spent(service: Service) -> Spent:
    user, system = Counter[str](), Counter[str]()
    for process in tree(service.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            side, times = _side(process), process.cpu_times()
            user[side] += times.user
            system[side] += times.system
    return Spent(user, system)


def _since(before: Spent, after: Spent) -> Spent:
    user, system = after.user.copy(), after.system.copy()
    user.subtract(before.user)
    system.subtract(before.system)
    return Spent(user, system)


def _idle(service: Service, plan: Plan) -> Spent:
    """Returns the processor time per second of an idle server."""
    seconds = plan.sized(IDLE_S, 1)
    before = _spent(service)
    time.sleep(seconds)
    spent = _since(before, _spent(service))
    return Spent(
        Counter({side: value / seconds for side, value in spent.user.items()}),
        Counter({side: value / seconds for side, value in spent.system.items()}),
    )


def _measure(scene: Scene, clients: int, idle: Spent) -> dict[str, dict[int, Thread]]:
    """Measures the processor time of a load, without the profiler. Returns that of all threads."""
    report, call, label = scene.report, scene.call, clients_of(clients)
    pids = {side: _pid(scene.service, side) for side in SIDES}
    threads = {side: cpu_seconds(pid) for side, pid in pids.items()}
    before = _spent(scene.service)
    began = time.monotonic()
    answered = scene.load(clients, scene.plan.sized(LOAD_S, 1))
    took = time.monotonic() - began
    spent = _since(before, _spent(scene.service))
    of_load = {side: threads_since(pid, threads[side]) for side, pid in pids.items()}
    report.add(label, "tok/s" if call.tokens else "req/s", answered.rate)
    for side in SIDES:
        user = spent.user[side] - idle.user[side] * took
        system = spent.system[side] - idle.system[side] * took
        aim = _aim(call, side) if clients == PROFILED else None
        report.add(
            f"{label}, {side}",
            "µs",
            (user + system) / answered.units * 1e6,
            aim=f"≤ {aim} µs" if aim else "",
            meets=at_most(aim) if aim else None,
        )
        report.add(f"{label}, {side}, user", "µs", user / answered.units * 1e6)
        report.add(f"{label}, {side}, system", "µs", system / answered.units * 1e6)
    return of_load


def _aim(call: PathCall, side: str) -> int | None:
    """Returns the most microseconds of a side. The replica's pass has no aim."""
    if side != "gateway":
        return None
    return TOKEN_AIM if call.tokens else REQUEST_AIM


def _profile(scene: Scene, side: str, *, is_first: bool) -> str:
    """Samples a side under load. Returns the samples as py-spy writes them."""
    pid = _pid(scene.service, side)
    seconds = scene.plan.sized(PROFILE_S, 1)
    rates: list[float] = []

    def work() -> None:
        rates.append(scene.load(PROFILED, seconds + 1).rate)

    with undisturbed(pid) as is_permitted:
        if is_first:
            work()
        folded = profile(pid, work, seconds, scene.place)
    if is_first:
        lost = 1 - rates[1] / rates[0]
        scene.report.add(f"the profiler's cost in the {side}, share of the rate", "", lost)
        if not is_permitted:
            note = "The system permits no real-time priorities: stages include waits for a core."
            scene.report.notes.append(note)
    return folded


def _side(process: psutil.Process) -> str:
    """Returns the side of a process. Replicas are forks of the engine host."""
    return "replica" if ENGINE_HOST in process.cmdline() else "gateway"


def _pid(service: Service, side: str) -> int:
    """Returns the busiest process of a side."""
    spent: dict[int, float] = {}
    for process in tree(service.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if _side(process) == side:
                spent[process.pid] = sum(process.cpu_times()[:2])
    return max(spent, key=lambda pid: spent[pid])


def _add_stages(scene: Scene, side: str, taken: Profile) -> None:
    """Divides the last round's processor time of a side among its stages."""
    report, label = scene.report, f"{clients_of(PROFILED)}, {side}"
    total = next(entry.values[-1] for entry in report.series if entry.label == label)
    found = shares(taken.weighed(side))
    for stage in dict.fromkeys(row.stage for row in SIDES[side]):
        report.add(f"{label}: {stage}", "µs", found.get(stage, 0.0) * total)
    if side == "replica":
        has_aim = not scene.call.tokens
        report.add(
            f"{label} without its pass",
            "µs",
            (1 - found.get(PASS, 0.0)) * total,
            aim=f"≤ {REQUEST_AIM} µs" if has_aim else "",
            meets=at_most(REQUEST_AIM) if has_aim else None,
        )


def _describe(
    report: Report, call: PathCall, profiles: Mapping[str, Sequence[Profile]], folder: Path
) -> None:
    """Writes the notes, and the folded stacks into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, of_side in profiles.items():
        path = folder / f"{report.name}.{side}.folded"
        path.write_text("".join(taken.folded for taken in of_side))
        frames, total = Counter[str](), 0.0
        for taken in of_side:
            frames += unmatched(taken.weighed(side))
            total += sum(thread.cpu_s for thread in taken.threads.values())
        listed = [f"`{frame}` {spent / total:.1%}" for frame, spent in frames.most_common(LISTED)]
        if listed:
            report.notes.append(f"`other` of the {side}, by frame: {', '.join(listed)}.")
    report.notes += [
        f"Microseconds of processor time for each {call.unit}, minus the cost of an idle server. "
        f"{cores()} cores are shared by client, gateway and replica.",
        f"Stages: py-spy, {RATE_HZ} samples a second. The profiled process has real-time priority, "
        "as samples cannot tell a thread that waits for a core from one that runs. Each thread's "
        "samples divide the processor time that it takes without the profiler.",
    ]
