"""Rows of a language model: tokens per second and time to the first token."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import chats, streams
from bench.chats import Chat, Chats
from bench.gpu import answers, models
from bench.gpu.results import Row, Target
from bench.gpu.session import Session
from bench.gpu.sizes import Sizes

MODEL = "llama-135m"
LEAST_TOKENS_S = (300, 4_000, 12_000)
"""Targets for one stream, some and many."""
MOST_FIRST_S = 0.3


def rows(sizes: Sizes) -> list[Row]:
    rates = [
        Row(name=f"chat 135 M bf16, {_streams(count)}", unit="tok/s", target=Target(least=least))
        for count, least in zip(sizes.streams, LEAST_TOKENS_S, strict=True)
    ]
    name = f"chat 135 M bf16, {_streams(sizes.streams[-1])}, first token p50"
    return [*rates, Row(name=name, unit="s", target=Target(most=MOST_FIRST_S))]


def _streams(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"


def run(session: Session, rows: Sequence[Row]) -> None:
    *rate_rows, first_row = rows
    sizes, folder, source = session.sizes, models.llama(session.sizes), Chats()
    bare = [
        _bare(session, folder, source.draw(count, sizes.prompt_tokens)) for count in sizes.streams
    ]
    session.bare("forget")
    deployment = session.deploy(folder, MODEL, chats.PIPELINE, config=chats.UNGUESSED)
    session.require_gpu(deployment)
    # Each number of streams is used before it is measured, as its graphs may be captured then.
    for count in sizes.streams:
        _load(session, source, count, 1)
    for row, count, limit in zip(rate_rows, sizes.streams, bare, strict=True):
        since = time.monotonic()
        load = _load(session, source, count, sizes.chats_per_stream)
        until = time.monotonic()
        checked = source.draw(count, sizes.prompt_tokens)
        leads = _leads(session, folder, checked)
        row.stoker, row.bare = load.rate, max(limit["graph"], limit["generate"])
        row.bare_note = "greedy steps as one CUDA graph, with the prompts"
        row.answers = f"{count} answers at once, each token by its lead in float32"
        row.wrong = answers.wrong_leads(leads) or limit["wrong"]
        facts = {"first_p50_s": load.first_s(0.5), "first_p99_s": load.first_s(0.99)}
        details = {
            "load": facts | {"gap_s": load.gap_s, "client_cpu_s": load.client_cpu_s},
            "bare": limit,
            "largest_lead": max(leads),
            "deployment": session.describe(deployment),
        }
        session.done(row, since, until, **details)
        if count == sizes.streams[-1]:
            first_row.stoker, first_row.wrong = load.first_s(0.5), row.wrong
            first_row.answers = row.answers
            session.done(first_row, since, until)


def _load(session: Session, source: Chats, count: int, each: int) -> streams.Load:
    sizes = session.sizes
    endpoint = chats.ours(session.service, MODEL)
    drawn = source.draw(count * each, sizes.prompt_tokens)
    return endpoint.load(drawn, count, sizes.answer_tokens)


def _bare(session: Session, folder: Path, drawn: Sequence[Chat]) -> dict[str, Any]:
    """Returns the bare loops' tokens per second, and why their tokens are wrong if they are."""
    prompts = [chat.tokens for chat in drawn]
    tokens = session.sizes.answer_tokens
    limit = session.bare("chat", folder=str(folder), prompts=prompts, tokens=tokens)
    leads = session.bare("leads", folder=str(folder), prompts=prompts, chosen=limit.pop("chosen"))
    wrong = answers.wrong_leads(leads)
    return limit | {"largest_lead": max(leads), "wrong": wrong and f"bare loop: {wrong}"}


def _leads(session: Session, folder: Path, drawn: Sequence[Chat]) -> list[float]:
    """Returns the largest lead of a better token for each of several answers, which are computed
    together.
    """
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]

    def chosen(chat: Chat) -> list[int]:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": chat.content}],
            "max_tokens": session.sizes.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
        }
        with session.service.connect(chats.PATH) as connection:
            answer = json.loads(connection.post(json.dumps(body).encode()))
        content = answer["choices"][0]["logprobs"]["content"]
        # The vocabulary stores a leading space as this letter.
        return [vocabulary[entry["token"].replace(" ", "Ġ")] for entry in content]

    with ThreadPoolExecutor(len(drawn)) as threads:
        tokens = list(threads.map(chosen, drawn))
    prompts = [chat.tokens for chat in drawn]
    leads: list[float] = session.bare("leads", folder=str(folder), prompts=prompts, chosen=tokens)
    session.bare("forget")
    return leads
