"""Every event is one line of data, for all characters that a client may accept as the end of a
line.
"""

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from stoker.models.chat.answers import writer
from stoker.models.chat.answers.answer_events import Finished, Text, Usage
from stoker.server.events import messages
from stoker.wire import sse
from stoker.wire.generation_request import Generation, Sampling
from stoker.workloads.agents import stream as agents_stream
from stoker.workloads.agents.events import JournalEvent

BREAKS = "a\x85b\u2028c\u2029d\x1c\x1d\x1e\x0b\x0c\r\n\x00e"


def lines(content: bytes) -> list[str]:
    return [line for line in content.decode().splitlines() if line]


def data(content: bytes) -> list[Any]:
    payloads = [line.removeprefix("data: ") for line in lines(content) if line.startswith("data: ")]
    return [json.loads(payload) for payload in payloads if payload != "[DONE]"]


class TestFramed:
    @pytest.mark.parametrize("name", [None, "x.y"])
    def test_any_line_break(self, name: str | None) -> None:
        content = sse.event({BREAKS: [BREAKS]}, name)
        assert len(lines(content)) == (1 if name is None else 2)
        assert data(content) == [{BREAKS: [BREAKS]}]

    def test_bytes_that_only_look_like_one(self) -> None:
        """The bytes of a line break may occur within those of other characters."""
        text = "\u2027\u2085\u5085\U000e2028 \\u2028"
        assert data(sse.framed(orjson.dumps(text))) == [text]


class TestStreams:
    @pytest.mark.parametrize("api", ["chat", "responses", "completions"])
    def test_of_answers(self, api: Any) -> None:
        answer = {"id": "x", "created": 1, "model": "m", "settings": {"instructions": BREAKS}}
        sampling = Sampling()
        generation = Generation(
            api=api, prompts=["x"], sampling=sampling, stream=True, answer=answer
        )
        made = writer(generation, sampling)
        events = [Text(BREAKS), Finished("stop")]
        content = made.begin(Usage()) + made.add(0, events) + made.end(Usage())
        assert not [
            line for line in lines(content) if not line.startswith(("data: ", "event: ", ": "))
        ]
        assert BREAKS in [
            event.get("delta") if api == "responses" else _text(event) for event in data(content)
        ]

    def test_of_agents(self) -> None:
        event = JournalEvent(3, "message.delta", {"text": BREAKS}, datetime.now(UTC))
        content = agents_stream._sse("run_1", event)
        assert len(lines(content)) == 3
        assert data(content)[0]["data"] == {"text": BREAKS}

    def test_of_the_console(self) -> None:
        content = messages.told("deployment", {"message": BREAKS})
        assert len(lines(content)) == 2
        assert data(content) == [{"message": BREAKS}]


def _text(chunk: Any) -> str | None:
    (choice,) = chunk["choices"]
    return choice.get("text") or choice.get("delta", {}).get("content")
