"""Calls, tokens and queue times of each service tier, in the metrics and in the usage report."""

from pathlib import Path

import stoker.demo
from tests.support.deploying import deploy
from tests.support.scraping import scrape
from tests.support.server import Server
from tests.usage.test_over_http import until

DEMO = Path(stoker.demo.__file__).parent / "models"
CHAT = "/v1/chat/completions"


def body(**more: object) -> dict[str, object]:
    return {"model": "tiered", "messages": [{"role": "user", "content": "Hi"}], **more}


def test_calls_and_tokens_of_each_tier(server: Server) -> None:
    server.wait_ready()
    with server.account("tiered") as client, server.client(server.operator_key) as operator:
        which = {"account": client.account_id, "model": "tiered"}
        deploy(client, DEMO / "tiny-chat", "tiered", engine="torch")
        read = {"default": 0, "flex": 0}
        written = {"default": 0, "flex": 0}
        for tier, tokens in (("flex", 5), ("default", 7), ("flex", 9)):
            asked = body(max_tokens=tokens, ignore_eos=True, service_tier=tier)
            usage = client.post(CHAT, json=asked).raise_for_status().json()["usage"]
            read[tier] += usage["prompt_tokens"]
            written[tier] += usage["completion_tokens"]
        metrics = scrape(operator)
        assert written == {"default": 7, "flex": 14}
        for tier, calls in (("default", 1), ("flex", 2)):
            of_tier = {"tier": tier, **which}
            assert metrics.get("stoker_tier_requests_total", outcome="ok", **of_tier) == calls
            for direction, expected in (("input", read), ("output", written)):
                counted = metrics.get("stoker_tier_tokens_total", direction=direction, **of_tier)
                assert counted == expected[tier]
            assert metrics.get("stoker_tier_queue_seconds_count", **of_tier) == calls
            assert metrics.get("stoker_tier_queue_seconds_sum", **of_tier) > 0
        assert metrics.get("stoker_tier_requests_total", tier="priority", **which) == 0

        def reported() -> dict[str, tuple[int, int]]:
            rows = client.get("/v1/usage?group_by=tier").raise_for_status().json()["data"]
            return {row["tier"]: (row["input_tokens"], row["output_tokens"]) for row in rows}

        until(lambda: reported().get("flex", (0, 0))[1] >= 14)
        assert reported()["default"] == (read["default"], 7)
