"""Chats with equal beginnings: the benefit of the prefix cache."""

from bench.chat_models import llama_135m
from bench.chats import ANSWER_TOKENS, Chats, ours, settled
from bench.common import Plan, Report, at_least, scratch
from bench.service import serving

CLIENTS, EACH = 16, 1
PREFIX_WORDS = 512
TOKENS = 560
"""Tokens per prompt."""
AIM = 2


def run(plan: Plan) -> Report:
    report = Report("chat_prefix", f"chats with a common prefix of {PREFIX_WORDS} tokens")
    chats = Chats()
    clients = plan.sized(CLIENTS, 2)
    with scratch() as place, serving(report, place) as service:
        settled(service, llama_135m(), "measured", chats)
        endpoint = ours(service, "measured")
        endpoint.load(chats.draw(clients), clients)
        prefix = " ".join(chats.words(PREFIX_WORDS))
        endpoint.load(chats.draw(1, TOKENS, prefix), 1)
        for _ in range(plan.rounds):
            rates: list[float] = []
            for name, begin in (("distinct prefixes", ""), ("one prefix, computed before", prefix)):
                drawn = chats.draw(clients * EACH, TOKENS, begin)
                measured_load = endpoint.load(drawn, clients)
                report.client.add(name, measured_load.client_cpu_s, measured_load.seconds)
                rates.append(len(measured_load.answers) / measured_load.seconds)
                report.add(name, "req/s", rates[-1])
                report.add(f"{name}, first token p50", "ms", measured_load.first_s(0.5) * 1e3)
            report.add(
                "one prefix / distinct ones",
                "x",
                rates[1] / rates[0],
                aim=f"≥ {AIM}",
                meets=at_least(AIM),
            )
    report.notes = [
        f"{clients} clients, prompts of {TOKENS} tokens, {ANSWER_TOKENS} tokens out.",
        "The template stands before the prefix and is part of it.",
    ]
    return report
