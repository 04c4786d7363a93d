"""Joins streamed answers into one document."""

import json
from typing import Any

from stoker.workloads.evaluation.replay.streams import folded


def events(*parts: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(part).encode() + end for part in parts)


def test_texts_run_on_by_their_index() -> None:
    content = events(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]},
        {"choices": [{"index": 1, "delta": {"content": "x"}}]},
        {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"total_tokens": 3}},
    )
    assert json.loads(folded(content + b"data: [DONE]\n\n")) == {
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"},
            {"index": 1, "delta": {"content": "x"}},
        ],
        "usage": {"total_tokens": 3},
    }


def test_named_events_comments_and_lists() -> None:
    content = b": wait\r\n\r\nevent: one\r\n" + events({"logprobs": [0.1]}, end=b"\r\n\r\n")
    content += events({"logprobs": [0.2]})
    assert json.loads(folded(content)) == {"logprobs": [0.1, 0.2]}


def test_what_is_no_stream_of_events() -> None:
    for content in (b"RIFF\x00\x01", b'{"a": 1}', b"", b"data: {broken\n\n"):
        assert folded(content) == content
