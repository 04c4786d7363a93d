"""Leaves out what a conversation began with, until the rest fits the model."""

from collections.abc import Callable, Sequence
from typing import Any

Messages = Sequence[dict[str, Any]]


def shortened(messages: Messages, fits: Callable[[Messages], bool]) -> Messages:
    """The conversation without as few of its oldest turns as it takes; all of them where that is
    not enough.

    What the system said, the last message of the user and what came last of all always stay.

    Args:
        messages: as chat templates take them.
        fits: whether so many are few enough. Asked for a handful of the possible beginnings.
    """
    turns = _turns(messages)
    least, most = 0, len(turns)
    while least < most:
        middle = (least + most) // 2
        if fits(_without(messages, turns[:middle])):
            most = middle
        else:
            least = middle + 1
    return _without(messages, turns[:least])


def _turns(messages: Messages) -> list[list[int]]:
    """What can be left out, the oldest first: places of messages that belong together.

    That is a message of the user with all that came of it, so that roles go on taking turns; of the
    last one, each answer of the assistant with the outputs of the tools that it called.
    """
    last = max((at for at, one in enumerate(messages) if one["role"] == "user"), default=-1)
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
    left = {at for turn in turns for at in turn}
    return [one for at, one in enumerate(messages) if at not in left]
