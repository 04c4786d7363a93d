"""Chats with answers that repeat a passage of their prompts: the benefit of guessing the next
tokens.
"""

import json
from typing import Any

from bench import streams
from bench.chat_models import chat_tokenizer, llama_135m
from bench.chats import ANSWER_TOKENS, PATH, UNGUESSED, Chats, ours, settled
from bench.common import Plan, Report, at_least, clients_of, scratch
from bench.service import serving

WORDS, START = 120, 20
"""Words per prompt, and start of the passage in it. The passage is longer than an answer."""
CLIENTS = {1: 3, 4: 1}
"""Maps the number of clients to requests per client and round."""
WITH, WITHOUT = "with guesses", "without"
AIM = 1.5


def run(plan: Plan) -> Report:
    report = Report(
        "chat_repeats",
        f"chats that repeat a passage of their prompts, {ANSWER_TOKENS} tokens",
    )
    chats, folder = Chats(), llama_135m()
    models: dict[str, dict[str, Any]] = {WITH: {"config": {}}, WITHOUT: {"config": UNGUESSED}}
    counts = plan.sized(CLIENTS, {1: 1})
    with scratch() as place, serving(report, place) as service:
        for model, more in models.items():
            settled(service, folder, model.replace(" ", "-"), chats, **more)
        for number in range(plan.rounds + 1):
            for clients, each in counts.items():
                drawn = [_body(chats) for _ in range(clients * each)]
                rates: dict[str, float] = {}
                for name in models:
                    endpoint = ours(service, name.replace(" ", "-"))
                    bodies = [json.dumps({**endpoint.always, **chat}).encode() for chat in drawn]
                    address = endpoint.base_url + PATH
                    measured_load = streams.load(
                        address, endpoint.key, bodies, clients, ANSWER_TOKENS
                    )
                    rates[name] = measured_load.rate
                    if number:
                        # The first round still learns the times of passes.
                        label = f"{name}, {clients_of(clients)}"
                        report.add(label, "tok/s", measured_load.rate)
                        report.client.add(label, measured_load.client_cpu_s, measured_load.seconds)
                if number:
                    report.add(
                        f"{WITH} / {WITHOUT}, {clients_of(clients)}",
                        "x",
                        rates[WITH] / rates[WITHOUT],
                        aim=f"≥ {AIM}" if clients == 1 else "",
                        meets=at_least(AIM) if clients == 1 else None,
                    )
    report.notes = [
        f"Prompts of {WORDS} random words of one token each. The weights are random, so a grammar "
        "and a token bias force the answer to be a passage of the prompt, on both sides.",
        "Each prompt is used once on each side.",
    ]
    return report


def _body(chats: Chats) -> dict[str, Any]:
    words = chats.words(WORDS)
    passage = " ".join(words[START:])
    tokens = chat_tokenizer()(passage)["input_ids"]
    return {
        "messages": [{"role": "user", "content": " ".join(words)}],
        "structured_outputs": {"choice": [passage]},
        "logit_bias": dict.fromkeys(map(str, tokens), 100),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
    }
