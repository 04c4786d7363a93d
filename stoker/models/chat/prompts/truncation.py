"""Omits the oldest turns of a conversation until the rest fits the model."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Messages = Sequence[dict[str, Any]]
TOKEN_BYTES = 64
"""Bytes of JSON per token from which on no tokenizer fits a conversation into a context."""


def may_fit(messages: Messages, max_length: int) -> bool:
    """Returns False for messages that are too long for `max_length` tokens in any tokenizer.

    Rendering and encoding megabytes takes seconds.
    """
    return len(msgspec.json.encode(messages)) <= TOKEN_BYTES * max_length


def shortened(messages: Messages, fits: Callable[[Messages], bool]) -> Messages:
    """Returns the conversation without its oldest turns. Omits as few as necessary, or all if even
    that does not suffice.

    The system's messages, the user's last message and the latest turn always stay.

    Args:
        messages: messages in the form that chat templates accept.
        fits: returns True if the messages fit. It is called for only a few of the possible
            beginnings, and for none that is much longer than the result.
    """
    turns = _turns(messages)
    least, most = 0, len(turns)
    kept = 1
    while kept < len(turns):
        if not fits(_without(messages, turns[:-kept])):
            least = len(turns) - kept + 1
            break
        most = len(turns) - kept
        kept *= 2
    while least < most:
        middle = (least + most) // 2
        if fits(_without(messages, turns[:middle])):
            most = middle
        else:
            least = middle + 1
    return _without(messages, turns[:least])


def _turns(messages: Messages) -> list[list[int]]:
    """Returns the turns that can be omitted, oldest first. Each is a list of indexes of messages
    that belong together.

    A turn is a user's message with all its replies, so that roles still alternate. After the user's
    last message, a turn is an answer of the assistant with the outputs of its tool calls.
    """
    last = max((at for at, entry in enumerate(messages) if entry["role"] == "user"), default=-1)
    turns: list[list[int]] = []
    for at, message in enumerate(messages):
        role = message["role"]
        if role == "system" or at == last:
            continue
        if not turns or role == "user" or (role == "assistant" and at > last):
            turns.append([])
        turns[-1].append(at)
    if turns and turns[-1][-1] == len(messages) - 1 > last:
        turns.pop()
    return turns


def _without(messages: Messages, turns: Sequence[Sequence[int]]) -> Messages:
    omitted = {at for turn in turns for at in turn}
    return [message for at, message in enumerate(messages) if at not in omitted]
