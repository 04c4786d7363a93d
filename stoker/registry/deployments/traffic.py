"""Which of a deployment's versions a call goes to."""

import hashlib
import secrets

from stoker.registry.deployments.directory import Entry

NONE, KEY, USER, HEADER = "none", "key", "user", "header:"
"""What may be sticky: nothing, an API key, a request's `user`, a header of this name."""


def picked(entry: Entry, caller: str | None) -> str:
    """A version by its share of the calls.

    Args:
        caller: whoever is to get the same version each time, while the shares stay as they are;
            None: chance decides.
    """
    if not entry.shares:
        return entry.version_id
    point = secrets.randbelow(100) if caller is None else _point(entry.deployment_id, caller)
    for share in entry.shares:
        point -= share.percent
        if point < 0:
            return share.version_id
    return entry.version_id


def _point(deployment_id: str, caller: str) -> int:
    """0 to 99, as evenly as SHA-256 spreads."""
    digest = hashlib.sha256(f"{deployment_id}\n{caller}".encode()).digest()
    return int.from_bytes(digest[:8]) % 100
