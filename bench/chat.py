"""Chats: tokens per second and time to first token, compared with other servers."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import dtypes
from bench.chat_models import llama_135m
from bench.chats import (
    ANSWER_TOKENS,
    PIPELINE,
    PROMPT_TOKENS,
    UNGUESSED,
    Chat,
    Chats,
    Endpoint,
    ours,
    settled,
)
from bench.common import (
    Plan,
    Report,
    at_least,
    at_most,
    clients_of,
    cores,
    progress,
    scratch,
)
from bench.genai import SIDE as LOOP
from bench.genai import genai
from bench.machine import has_bfloat16
from bench.peers import servers
from bench.peers.environments import NotMadeError
from bench.peers.servers import TRANSFORMERS_SERVE, VLLM, PeerServer
from bench.processes import awake, own_cpu_seconds
from bench.service import Service, serving
from bench.streams import Load

REQUESTS = {1: 3, 8: 2, 16: 2, 48: 1}
"""Maps the number of clients to requests per client and round."""
AT = 16
"""Number of clients for which the aims apply."""
OURS, TORCH = "ours", "ours with torch"
TORCH_CLIENTS = (1, AT)


@dataclass(frozen=True)
class Contender:
    name: str
    load: Callable[[Sequence[Chat], int], Load]
    clients: Sequence[int] = tuple(REQUESTS)
    pid: int | None = None
    """Process that is suspended while others are measured. None for Stoker, which always answers
    its own health checks.
    """


@dataclass(frozen=True)
class Aim:
    text: str
    meets: Callable[[float], bool]


RATE_AIMS = {
    VLLM: Aim("≥ 1.3", at_least(1.3)),
    TRANSFORMERS_SERVE: Aim("≥ 3", at_least(3)),
    LOOP: Aim("≥ 0.97", at_least(0.97)),
}
FIRST_AIMS = {VLLM: Aim("≤ 0.6", at_most(0.6))}
LAST_AIMS = {VLLM: Aim("≤ 1", at_most(1))}
GATEWAY_AIM = Aim("≤ 60 µs", at_most(60))


def run(plan: Plan) -> Report:
    report = Report(
        "chat",
        f"streamed chats, {PROMPT_TOKENS} input and {ANSWER_TOKENS} output tokens, closed loops",
    )
    folder, chats = llama_135m(), Chats()
    requests = plan.sized(REQUESTS, {1: 1, 4: 1})
    most = min(AT, max(requests))
    with scratch() as place, contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(report, place / OURS))
        contenders = [
            *_ours(report, stack, place, service, folder, chats),
            *_peers(report, stack, place, folder, chats, most),
        ]
        contenders[1:1] = _of_their_dtypes(report, service, folder, chats)
        names = [contender.name for contender in contenders]
        for contender in list(contenders):
            # A server compiles or plans at the first prompts of a shape.
            with _left_out(report, contenders, contender):
                _measured(contender, chats.draw(1), 1)
                _measured(contender, chats.draw(most), most)
        for _ in range(plan.rounds):
            for clients, each in requests.items():
                drawn = chats.draw(clients * each)
                for contender in list(contenders):
                    if clients in contender.clients:
                        with _left_out(report, contenders, contender):
                            _round(report, service, contender, drawn, clients)
    _add_ratios(report, names, list(requests))
    report.notes += [
        "While one server is measured, the peers' processes are suspended, and ours is idle.",
        "The weights are random, in bfloat16. The dtype of each side is in 'settings'. All sides "
        f"have {cores()} cores and sample greedily.",
        "Ours has the default settings without speculation, after its conversion.",
        "Each prompt is used once, so no prefix cache helps.",
        f"Gateway: all processor time of the server's process with {AT} clients.",
    ]
    return report


def _ours(
    report: Report,
    stack: contextlib.ExitStack,
    place: Path,
    service: Service,
    folder: Path,
    chats: Chats,
) -> Iterator[Contender]:
    """Yields Stoker with its defaults, Stoker with torch, and the loop on the model that Stoker has
    converted.
    """
    converted = settled(service, folder, "measured", chats)
    dtype = dtypes.of_ours(folder, converted)
    report.settings[OURS]["dtype"] = dtype
    yield Contender(OURS, ours(service, "measured").load)
    service.deploy(
        folder, "with-torch", PIPELINE, readiness="hot", engine="torch", config=UNGUESSED
    )
    ours(service, "with-torch").check(chats.draw(1)[0])
    yield Contender(TORCH, ours(service, "with-torch").load, TORCH_CLIENTS)
    if converted is None:
        report.left_out(LOOP, "the model was not converted.")
        return
    try:
        loop = stack.enter_context(genai(report, place, folder, Path(converted.folder), dtype))
    except (NotMadeError, RuntimeError) as error:
        report.left_out(LOOP, error)
        return
    loop.load([chat.tokens for chat in chats.draw(1)], 1, ANSWER_TOKENS)
    yield Contender(
        LOOP,
        lambda drawn, clients: loop.load([chat.tokens for chat in drawn], clients, ANSWER_TOKENS),
    )


def _of_their_dtypes(
    report: Report, service: Service, folder: Path, chats: Chats
) -> Iterator[Contender]:
    """Yields Stoker in the dtypes of the peers that differ from its default."""
    own_dtype = report.settings[OURS]["dtype"]
    theirs = {entry.get("dtype", own_dtype) for entry in report.settings.values()}
    for dtype in sorted(theirs - {own_dtype}):
        model = f"measured-{dtype}"
        settled(service, folder, model, chats, dtype=dtype)
        yield Contender(f"{OURS}, {dtype}", ours(service, model).load)


def _peers(
    report: Report,
    stack: contextlib.ExitStack,
    place: Path,
    folder: Path,
    chats: Chats,
    clients: int,
) -> Iterator[Contender]:
    """Yields the available peers, each in its fastest dtype with this number of clients."""
    # Not tried, because a start takes two minutes.
    vllms = dtypes.BFLOAT16 if has_bfloat16() else dtypes.FLOAT32
    for name, start in ((VLLM, servers.vllm), (TRANSFORMERS_SERVE, servers.transformers_serve)):

        def rate(dtype: str, start: Callable[[Path, str], PeerServer] = start) -> float:
            with _served(report, start(folder, dtype), place, chats) as contender:
                _measured(contender, chats.draw(clients), clients)
                return _measured(contender, chats.draw(clients), clients).rate

        try:
            server = start(folder, vllms)
            if name == VLLM:
                report.settings[name] = {"dtype": vllms}
            else:
                unit = f"tok/s, {clients_of(clients)}"
                server = start(folder, dtypes.best(report, name, unit, rate))
            yield stack.enter_context(_served(report, server, place, chats))
        except (NotMadeError, RuntimeError) as error:
            report.left_out(name, error)


@contextlib.contextmanager
def _served(report: Report, server: PeerServer, place: Path, chats: Chats) -> Generator[Contender]:
    with servers.started(report, server, place) as running:
        progress(f"{server.name} was ready after {running.start_s:.0f} s")
        endpoint = Endpoint(running.base_url, "", server.body)
        with awake(running.pid):
            endpoint.check(chats.draw(1)[0])
        yield Contender(server.name, endpoint.load, pid=running.pid)


def _round(
    report: Report, service: Service, contender: Contender, drawn: Sequence[Chat], clients: int
) -> None:
    before = own_cpu_seconds(service.pid)
    measured_load = _measured(contender, drawn, clients)
    spent = own_cpu_seconds(service.pid) - before
    if contender.name == OURS and clients == AT:
        report.add(
            f"gateway, {AT} clients, CPU a token",
            "µs",
            spent / measured_load.tokens * 1e6,
            aim=GATEWAY_AIM.text,
            meets=GATEWAY_AIM.meets,
        )
    _add(report, contender.name, clients, measured_load)


@contextlib.contextmanager
def _left_out(report: Report, contenders: list[Contender], contender: Contender) -> Generator[None]:
    """Continues without a peer that fails. A failure of Stoker is raised."""
    try:
        yield
    except RuntimeError as error:
        if contender.name == OURS:
            raise
        contenders.remove(contender)
        report.left_out(contender.name, error)


def _measured(contender: Contender, drawn: Sequence[Chat], clients: int) -> Load:
    with contextlib.nullcontext() if contender.pid is None else awake(contender.pid):
        return contender.load(drawn, clients)


def _add(report: Report, name: str, clients: int, found: Load) -> None:
    label = _label(name, clients)
    report.add(label, "tok/s", found.rate)
    report.client.add(label, found.client_cpu_s, found.seconds)
    progress(f"{label}: {found.rate:.1f} tok/s")
    for share in (0.5, 0.99):
        value = found.first_s(share) * 1e3
        report.add(f"{label}, first token p{share * 100:.0f}", "ms", value)
    report.add(f"{label}, between tokens p50", "ms", found.gap_s * 1e3)


def _add_ratios(report: Report, names: Sequence[str], counts: Sequence[int]) -> None:
    """Adds the ratios of Stoker to each other contender, round by round."""
    values_by_label = {series.label: series.values for series in report.series}
    other_names = [name for name in names if name != OURS]
    for aims, suffix in (
        (RATE_AIMS, ""),
        (FIRST_AIMS, ", first token p50"),
        (LAST_AIMS, ", first token p99"),
    ):
        for clients in counts:
            for name in other_names:
                mine = values_by_label[_label(OURS, clients) + suffix]
                theirs = values_by_label.get(_label(name, clients) + suffix, ())
                # A contender that failed has fewer rounds.
                aim = aims.get(name) if clients == AT else None
                for value, other in zip(mine, theirs, strict=False):
                    report.add(
                        f"ours / {_label(name, clients)}{suffix}",
                        "x",
                        value / other,
                        aim=aim.text if aim else "",
                        meets=aim.meets if aim else None,
                    )


def _label(name: str, clients: int) -> str:
    return f"{name}, {clients_of(clients)}"
