"""Placement of replicas and calls: pure functions, which the fleet's simulation also uses."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from stoker.runtime.amounts import in_words
from stoker.runtime.graphics import Graphics
from stoker.runtime.interface import Call
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.generation_request import Conversation, Generation


@dataclass(frozen=True, kw_only=True)
class Place:
    """Properties of a node that matter for placement."""

    node_id: str
    budget_bytes: int
    """Bytes that all replicas together may hold. 0 means unknown."""
    claimed_bytes: int
    """Bytes held by replicas, including placed replicas that are not loaded yet."""
    leases: int
    has_files: bool
    """True if the node has the model's files."""
    devices: Mapping[int, int] = field(default_factory=dict[int, int])
    """Maps the index of each GPU to the bytes that replicas may still claim."""
    parts: Collection[int] = ()
    """Indices of the GPUs that are MIG instances. A replica cannot be spread over them."""

    def suits(self, graphics: Graphics | None, device_bytes: int = 0) -> bool:
        """Returns True if the node has the devices that a replica needs.

        Args:
            device_bytes: bytes that must be free on each device.
        """
        if graphics is None:
            return True
        numbers = [number for number, free in self.devices.items() if free >= device_bytes]
        if graphics.index is not None:
            return graphics.index in numbers
        if graphics.count > 1:
            numbers = [number for number in numbers if number not in self.parts]
        return len(numbers) >= graphics.count


def chosen(
    need_bytes: int, places: Collection[Place], graphics: Graphics | None = None
) -> str | None:
    """Returns the node for one more replica of `need_bytes`. None if it can never fit on any node.

    Nodes without the need for an eviction come first. Next come nodes with GPUs if the replica uses
    one, and nodes without GPUs otherwise. Then come nodes with the files, then the emptiest. Only
    the node knows how much of a device a replica needs, so here it counts as much as of the memory.
    """
    needs_device = graphics is not None and not graphics.is_optional
    possible = [
        place
        for place in places
        if (not place.budget_bytes or place.budget_bytes >= need_bytes)
        and (not needs_device or place.suits(graphics))
    ]
    if not possible:
        return None

    def order(one: Place) -> tuple[bool, bool, bool, float, int, str]:
        after = one.claimed_bytes + need_bytes
        fits = not one.budget_bytes or after <= one.budget_bytes
        has_device = bool(one.devices) and one.suits(graphics, need_bytes)
        if needs_device:
            fits = fits and has_device
        is_other = has_device == (graphics is None)
        fraction = after / one.budget_bytes if one.budget_bytes else 0.0
        return (not fits, is_other, not one.has_files, round(fraction, 3), one.leases, one.node_id)

    return min(possible, key=order).node_id


def why_none(need_bytes: int, places: Collection[Place], graphics: Graphics | None) -> str:
    """Returns why `chosen` finds no node: the need of the model and the largest node. Expects at
    least one node.
    """
    if graphics is None or graphics.is_optional or any(place.suits(graphics) for place in places):
        most = in_words(max(place.budget_bytes for place in places))
        return f"needs about {in_words(need_bytes)} of memory, but the largest node has {most}"
    if graphics.index is not None:
        return f"requires GPU {graphics.index}, but no node has it"
    if graphics.count == 1:
        return "requires a GPU, but no node has one"
    most = max(len(place.devices.keys() - {*place.parts}) for place in places)
    return (
        f"requires {graphics.count} GPUs, but no node has enough: set 'devices' to {max(1, most)}"
    )


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load of a node by one specification."""

    node_id: str
    outstanding: int
    """Unanswered calls of all gateways on the node."""
    ready: int
    """Number of replicas that accept calls."""
    has_failed: bool = False
    """True if the node could not load the specification."""

    @property
    def score(self) -> float:
        """Calls per replica ahead of the next call."""
        return self.outstanding / max(1, self.ready)


_OVERFLOW = 4
"""Maximum lead in score over the least busy node before affinity is ignored."""


def least_busy(loads: Sequence[Load], affinity: bytes = b"") -> str:
    """Returns the node for a call. Expects at least one node.

    Args:
        affinity: calls with the same affinity go to the same node, because it may have computed
            their common prefix. A node that is much busier than others is skipped.
    """
    # Nodes that still load have no replica that answers, and nodes that failed may fail again.
    ready = [load for load in loads if load.ready]
    loads = ready or [load for load in loads if not load.has_failed] or loads
    least = min(loads, key=lambda load: load.score)
    if affinity and len(loads) > 1:
        preferred = max(loads, key=lambda load: _weight(affinity, load.node_id))
        if preferred.score <= least.score + _OVERFLOW:
            return preferred.node_id
    return least.node_id


def affinity_of(spec: DeploymentSpec, call: Call | Generation) -> bytes:
    """Returns a digest of the account and a conversation's first messages. Calls with the same
    beginning have the same digest.
    """
    if not isinstance(call, Generation) or not isinstance(call.prompts[0], Conversation):
        return b""
    first = call.prompts[0].messages[:2]
    texts = [message["content"] for message in first if isinstance(message["content"], str)]
    digest = hashlib.blake2b(spec.account_id.encode(), digest_size=16)
    digest.update(msgspec.msgpack.encode(texts))
    return digest.digest()


def _weight(affinity: bytes, node_id: str) -> bytes:
    """Returns the weight of rendezvous hashing (Thaler and Ravishankar, 1998): when a node joins or
    leaves, only its own calls move.
    """
    return hashlib.blake2b(affinity + node_id.encode(), digest_size=8).digest()


def shares(total: int, parts: int) -> list[int]:
    """Distributes `total` replicas over `parts` nodes. The first nodes get the remainder."""
    return [total // parts + (number < total % parts) for number in range(parts)]
