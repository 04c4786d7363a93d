"""Where to run what: pure functions, which the fleet's simulation uses as well."""

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
    """A node, as far as it matters for what is to be placed."""

    node_id: str
    budget_bytes: int
    """What replicas may hold together; 0: not known."""
    claimed_bytes: int
    """What they hold, and what was placed there and is not loaded yet."""
    leases: int
    has_files: bool
    """Whether it has the model's files."""
    devices: Mapping[int, int] = field(default_factory=dict[int, int])
    """Its graphics devices, by their numbers: bytes that replicas may still take of them."""

    def suits(self, graphics: Graphics | None, device_bytes: int = 0) -> bool:
        """Whether it has the devices that a replica is to have.

        Args:
            device_bytes: so much is to be free of each.
        """
        if graphics is None:
            return True
        numbers = [number for number, free in self.devices.items() if free >= device_bytes]
        if graphics.index is not None:
            return graphics.index in numbers
        return len(numbers) >= graphics.count


def chosen(
    need_bytes: int, places: Collection[Place], graphics: Graphics | None = None
) -> str | None:
    """The node for one more replica of so many bytes; None: it can never fit on any.

    One where nothing has to be evicted is better than one where something has to, then one whose
    graphics devices are used, or that has none where they are not, then one that has the files,
    then the emptiest. What a replica takes of a device only its node knows: here as much as of the
    memory.
    """
    needs_device = graphics is not None and not graphics.is_optional
    possible = [
        one
        for one in places
        if (not one.budget_bytes or one.budget_bytes >= need_bytes)
        and (not needs_device or one.suits(graphics))
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
    """Why `chosen` finds none, of at least one: what a model needs, and what there is."""
    if graphics is None or graphics.is_optional or any(one.suits(graphics) for one in places):
        most = in_words(max(one.budget_bytes for one in places))
        return f"needs about {in_words(need_bytes)} of memory, and the largest node has {most}"
    if graphics.index is not None:
        return f"is to run on GPU {graphics.index}, and no node has one of that number"
    which = "a GPU" if graphics.count == 1 else f"{graphics.count} GPUs"
    return f"is to run on {which}, and no node has {'one' if graphics.count == 1 else 'so many'}"


@dataclass(frozen=True, kw_only=True)
class Load:
    """How busy a node is with one specification."""

    node_id: str
    outstanding: int
    """Calls that it has not answered, of all gateways."""
    ready: int
    """Replicas that take work."""
    has_failed: bool = False
    """Whether it could not load it."""

    @property
    def score(self) -> float:
        """Calls before the next one, a replica."""
        return self.outstanding / max(1, self.ready)


_OVERFLOW = 4
"""Calls more than the least busy has, beyond which a node is not kept to for what it remembers."""


def least_busy(loads: Sequence[Load], affinity: bytes = b"") -> str:
    """The node for a call, of at least one.

    Args:
        affinity: calls with the same go to the same node, while it is not much busier than others:
            it may have computed what they begin with.
    """
    # Those that load have nobody to answer yet, and those that have failed to may do so again.
    ready = [one for one in loads if one.ready]
    loads = ready or [one for one in loads if not one.has_failed] or loads
    least = min(loads, key=lambda one: one.score)
    if affinity and len(loads) > 1:
        preferred = max(loads, key=lambda one: _weight(affinity, one.node_id))
        if preferred.score <= least.score + _OVERFLOW:
            return preferred.node_id
    return least.node_id


def affinity_of(spec: DeploymentSpec, call: Call | Generation) -> bytes:
    """What calls have alike that begin alike: the account and a conversation's first messages."""
    if not isinstance(call, Generation) or not isinstance(call.prompts[0], Conversation):
        return b""
    first = call.prompts[0].messages[:2]
    texts = [one["content"] for one in first if isinstance(one["content"], str)]
    digest = hashlib.blake2b(spec.account_id.encode(), digest_size=16)
    digest.update(msgspec.msgpack.encode(texts))
    return digest.digest()


def _weight(affinity: bytes, node_id: str) -> bytes:
    """Rendezvous hashing (Thaler and Ravishankar, 1998): when a node comes or goes, only what was
    its own goes elsewhere."""
    return hashlib.blake2b(affinity + node_id.encode(), digest_size=8).digest()


def shares(total: int, parts: int) -> list[int]:
    """So many replicas on so many nodes, the first ones taking what is left over."""
    return [total // parts + (number < total % parts) for number in range(parts)]
