import random
from typing import Any

import pytest

from stoker.models.chat.prompts.truncation import Messages, may_fit, shortened


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}, {"id": "d"}]}
TALK = [
    say("system", "s"),
    say("user", "u1"),
    say("assistant", "a1"),
    say("user", "u2"),
    CALL,
    say("tool", "t1"),
    say("tool", "t2"),
    say("assistant", "a2"),
    say("system", "s2"),
    say("user", "u3"),
]
AT_WORK = [
    *TALK,
    {**CALL, "content": "first"},
    say("tool", "t3"),
    say("tool", "t4"),
    {**CALL, "content": "second"},
    say("tool", "t5"),
]


def left(messages: Messages, most: int) -> list[str]:
    remaining = shortened(messages, lambda some: len(some) <= most)
    return [message["content"] or "call" for message in remaining]


class TestShortened:
    @pytest.mark.parametrize(
        ("most", "found"),
        [
            (10, [one["content"] or "call" for one in TALK]),
            (9, ["s", "u2", "call", "t1", "t2", "a2", "s2", "u3"]),
            (8, ["s", "u2", "call", "t1", "t2", "a2", "s2", "u3"]),
            (7, ["s", "s2", "u3"]),
            (3, ["s", "s2", "u3"]),
            (1, ["s", "s2", "u3"]),
        ],
    )
    def test_whole_turns(self, most: int, found: list[str]) -> None:
        """A user's message is removed with its consequences: roles keep alternating."""
        assert left(TALK, most) == found

    @pytest.mark.parametrize(
        ("most", "found"),
        [
            (8, ["s", "s2", "u3", "first", "t3", "t4", "second", "t5"]),
            (7, ["s", "s2", "u3", "second", "t5"]),
            (1, ["s", "s2", "u3", "second", "t5"]),
        ],
    )
    def test_calls_go_with_their_outputs(self, most: int, found: list[str]) -> None:
        """The last calls and outputs stay. Otherwise the model would request them again."""
        assert left(AT_WORK, most) == found

    def test_nothing_to_leave_out(self) -> None:
        for messages in ([say("user", "u")], [say("system", "s"), say("user", "u")], []):
            assert left(messages, 0) == [message["content"] for message in messages]

    def test_no_user(self) -> None:
        messages = [say("assistant", "a"), say("assistant", "b"), say("assistant", "c")]
        assert left(messages, 2) == ["b", "c"]
        assert left(messages, 0) == ["c"]

    @pytest.mark.parametrize("seed", range(30))
    def test_no_more_than_has_to_be(self, seed: int) -> None:
        """The result equals a search through all beginnings, with fewer attempts."""
        chance = random.Random(seed)
        messages: list[dict[str, Any]] = [say("system", "x")]
        for number in range(chance.randint(1, 60)):
            messages.append(say("user", str(number)))
            messages += [say("assistant", "x")] * chance.randint(0, 3)
        most = chance.randint(1, len(messages))
        asked = 0

        def fits(some: Messages) -> bool:
            nonlocal asked
            asked += 1
            return len(some) <= most

        remaining = shortened(messages, fits)
        possible = [
            shortened(messages, lambda some, size=size: len(some) <= size)
            for size in range(len(messages) + 1)
        ]
        longest = max(
            (candidate for candidate in possible if len(candidate) <= most), key=len, default=None
        )
        assert remaining == (longest if longest is not None else min(possible, key=len))
        assert asked <= 12

    @pytest.mark.parametrize("most", [1, 2, 3, 100, 1000])
    def test_a_long_conversation_is_never_tried_whole(self, most: int) -> None:
        """The attempts' sizes depend on the result, not on the conversation."""
        messages = [say("user", str(number)) for number in range(50_000)]
        tried: list[int] = []

        def fits(some: Messages) -> bool:
            tried.append(len(some))
            return len(some) <= most

        assert shortened(messages, fits) == messages[-most:]
        assert max(tried) <= 2 * most + 1
        assert len(tried) <= 2 * most.bit_length() + 2


def test_may_fit() -> None:
    """Fifty spaces are one token in some tokenizers."""
    assert may_fit([say("user", " " * 50 * 1000)], 1000)
    assert not may_fit([say("user", "word " * 20_000)], 1000)
