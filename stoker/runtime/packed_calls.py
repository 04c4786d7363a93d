"""Calls as messages for replicas. A process other than the runtime's may pack them."""

from collections.abc import Sequence
from typing import Self

from stoker.base.fairness import Party
from stoker.runtime.interface import Call
from stoker.wire.framing import Frame
from stoker.wire.generation_request import Generation
from stoker.wire.protocol import Generate, ToReplica, Work, pack, unpack


class PackedCall(Call, frozen=True, kw_only=True):
    """Call that was packed for a replica. The runtime sends the frames without decoding them."""

    id: int
    """Id of the call in the message. No other call of the runtime may have it."""
    frames: Sequence[Frame]

    @classmethod
    def of(cls, identifier: int, frames: Sequence[Frame]) -> Self:
        return cls(task="", items=(), parameters={}, single=True, id=identifier, frames=frames)

    def unpacked(self) -> Call | Generation:
        """Returns the call as it was before it was packed."""
        message = unpack(self.frames)
        if isinstance(message, Generate):
            return message.generation
        if not isinstance(message, Work):
            raise TypeError(f"a packed {type(message).__name__} is not a call")
        return Call(
            task=message.task,
            items=message.items,
            parameters=message.parameters,
            single=message.single,
            finishing=message.finishing,
            stream=message.stream,
        )


def frames_of(identifier: int, call: Call | Generation, party: Party) -> Sequence[Frame]:
    """Returns the frames of the message for a replica.

    Args:
        party: the caller.
    """
    if isinstance(call, PackedCall):
        return call.frames
    return pack(_message_of(identifier, call, party))


def _message_of(identifier: int, call: Call | Generation, party: Party) -> ToReplica:
    if isinstance(call, Generation):
        return Generate(identifier, call, party.key, party.tier)
    return Work(
        identifier,
        call.task,
        list(call.items),
        dict(call.parameters),
        call.single,
        dict(call.finishing),
        call.stream,
        party.key,
        call.adapter.folder if call.adapter else "",
        party.tier,
    )
