"""Background responses that one server answers are followed through another."""

import json
import time
from itertools import pairwise
from typing import Any

from tests.agents.conftest import MODEL
from tests.openai.support import replayed
from tests.servers.support import SLACK_S, Pair, until
from tests.support.deploying import deploy, wait_for

PATH = "/v1/responses"


def test_text_is_streamed_through_another_server(two: Pair) -> None:
    on_a, on_b = two.account()
    with on_a, on_b:
        chat = deploy(on_a, MODEL, "chat", engine="torch", readiness="hot")
        until(lambda: on_b.get(f"/v1/deployments/{chat['id']}").status_code == 200)
        for client in (on_a, on_b):
            wait_for(client, chat["id"], "ready")
        body = {
            "model": "chat",
            "input": "What is the capital of France?",
            "background": True,
            "max_output_tokens": 700,
            "ignore_eos": True,
        }
        path = f"{PATH}/{on_a.post(PATH, json=body).raise_for_status().json()['id']}"
        received: list[dict[str, Any]] = []
        times: list[float] = []
        with on_b.stream("GET", path, params={"stream": True}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    received.append(json.loads(line.removeprefix("data: ")))
                    times.append(time.monotonic())
        deltas = [
            at
            for at, event in zip(times, received, strict=True)
            if event["type"] == "response.output_text.delta"
        ]
        assert len(deltas) > 1
        assert deltas[0] < times[-1], "text arrives before the end"
        gaps = [after - before for before, after in pairwise(deltas)]
        assert max(gaps) < 1 + SLACK_S
        assert received[-1]["type"] == "response.incomplete"
        for client in (on_a, on_b):
            assert replayed(client.get(path, params={"stream": True}).content) == received
        on_a.delete(f"/v1/deployments/{chat['id']}").raise_for_status()
