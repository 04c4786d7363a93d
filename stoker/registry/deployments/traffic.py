"""Selects the version of a deployment that receives a call."""

import hashlib
import secrets

from stoker.registry.deployments.directory import DirectoryEntry

NONE, KEY, USER, HEADER = "none", "key", "user", "header:"
"""Sticky modes: none, by API key, by a request's `user`, or by a header of this name."""


def picked(entry: DirectoryEntry, caller: str | None) -> str:
    """Returns a version, selected by the versions' shares of the calls.

    Args:
        caller: caller that gets the same version each time, as long as the shares stay unchanged.
            None selects at random.
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
    """Returns a number from 0 to 99, distributed as evenly as SHA-256."""
    digest = hashlib.sha256(f"{deployment_id}\n{caller}".encode()).digest()
    return int.from_bytes(digest[:8]) % 100
