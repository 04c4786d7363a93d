"""Processor time of a streamed token outside the engine: chat completions, Responses, Messages."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from bench.chat_models import small_llamas
from bench.chats import PATH, Chat, Chats, settled
from bench.common import Plan, Report, at_most, clients_of, progress, scratch
from bench.processes import cpu_seconds_by_part
from bench.service import Service, serving

CLIENTS = 8
PROMPT, TOKENS = 32, 256
ANSWERS, SLICES = 64, 4
"""Answers of each API in one slice, and slices of each API in one round. APIs take turns."""
MODEL = "streamed"
AIM = 1.05
TIMEOUT_S = 120


@dataclass(frozen=True)
class Api:
    """One API that streams chats."""

    path: str
    body: Callable[[str], dict[str, Any]]
    usage: Callable[[Mapping[str, Any]], int | None]
    """Returns the number of output tokens that an event names, if any."""


def _tokens(*names: str) -> Callable[[Mapping[str, Any]], int | None]:
    def read(event: Mapping[str, Any]) -> int | None:
        value: Any = event
        for name in names:
            value = value.get(name) if value else None
        return value

    return read


def _messages(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


APIS: Mapping[str, Api] = {
    "chat completions": Api(
        PATH,
        lambda text: {
            "messages": _messages(text),
            "max_tokens": TOKENS,
            "stream_options": {"include_usage": True},
        },
        _tokens("usage", "completion_tokens"),
    ),
    "Responses": Api(
        "/v1/responses",
        lambda text: {"input": text, "max_output_tokens": TOKENS, "store": False},
        _tokens("response", "usage", "output_tokens"),
    ),
    "Messages": Api(
        "/v1/messages",
        lambda text: {"messages": _messages(text), "max_tokens": TOKENS},
        _tokens("usage", "output_tokens"),
    ),
}


def run(plan: Plan) -> Report:
    report = Report("stream_apis", "Processor time of a streamed token in three APIs")
    answers, slices = plan.sized(ANSWERS, CLIENTS), plan.sized(SLICES, 1)
    chats = Chats()
    with scratch() as place, serving(report, place) as service:
        settled(service, small_llamas(50)[0], MODEL, chats)
        for number in range(plan.rounds):
            used = {name: Counter[str]() for name in APIS}
            for _ in range(slices):
                for name, api in APIS.items():
                    drawn = chats.draw(answers, PROMPT)
                    before = cpu_seconds_by_part(service.pid)
                    asyncio.run(_stream(service, api, drawn))
                    after = cpu_seconds_by_part(service.pid)
                    used[name].update({part: after[part] - before[part] for part in after})
            each = {name: _outside(parts, answers * slices) for name, parts in used.items()}
            for name, value in each.items():
                report.add(f"{name}, {clients_of(CLIENTS)}", "µs/token", value)
            for name in [*APIS][1:]:
                report.add(
                    f"{name} / chat completions",
                    "x",
                    each[name] / each["chat completions"],
                    aim=f"≤ {AIM:g}",
                    meets=at_most(AIM),
                )
            progress(f"round {number + 1}: {each}")
    report.notes += [
        f"Answers of {TOKENS} tokens. The time is that of the gateway and of the replica's threads "
        "except the engine's. The APIs take turns.",
    ]
    return report


def _outside(parts: Counter[str], answers: int) -> float:
    """Returns the microseconds of a token outside the engine."""
    return 1e6 * (parts["gateway"] + parts["beside the engine"]) / (answers * TOKENS)


async def _stream(service: Service, api: Api, chats: list[Chat]) -> None:
    """Streams an answer to each chat. Raises `RuntimeError` if one has another length."""
    waiting = list(chats)
    async with httpx.AsyncClient(
        base_url=service.base_url,
        headers={"authorization": f"Bearer {service.key}"},
        timeout=TIMEOUT_S,
    ) as client:
        clients = (_client(client, api, waiting) for _ in range(CLIENTS))
        await asyncio.gather(*clients)


async def _client(client: httpx.AsyncClient, api: Api, waiting: list[Chat]) -> None:
    while waiting:
        body = {"model": MODEL, "stream": True, "temperature": 0, **api.body(waiting.pop().content)}
        tokens = None
        async with client.stream("POST", api.path, json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                # Only the last events name the tokens.
                if line.startswith("data:") and f'tokens":{TOKENS}' in line:
                    tokens = api.usage(json.loads(line.removeprefix("data:"))) or tokens
        if tokens != TOKENS:
            raise RuntimeError(f"an answer of {api.path} has {tokens} tokens, not {TOKENS}")
