"""Reverse proxies with headers that report the client's address."""

from pathlib import Path

import httpx
import pytest

from stoker.server.console.attempts import FREE
from tests.support.server import WITHOUT_MODELS, Server, running

SESSION = "/console/session"


def tried(server: Server, address: str) -> int:
    """Returns the status of a sign-in with a wrong key, as forwarded by a proxy for a client."""
    headers = {"x-forwarded-for": address, "origin": server.base_url}
    with httpx.Client(base_url=server.base_url, headers=headers) as client:
        return client.post(SESSION, json={"key": "sk-a-b"}).status_code


@pytest.mark.parametrize(
    ("proxies", "other"),
    [(None, 401), ('["127.0.0.0/8"]', 401), ('["192.0.2.1"]', 429), ("[]", 429)],
    ids=["default", "a network", "another address", "none"],
)
def test_clients_behind_a_proxy(proxies: str | None, other: int, tmp_path: Path) -> None:
    settings = {} if proxies is None else {"STOKER_TRUSTED_PROXIES": proxies}
    with running(tmp_path / "data", **WITHOUT_MODELS, **settings) as server:
        assert [tried(server, "203.0.113.1") for _ in range(FREE + 1)] == [401] * FREE + [429]
        assert tried(server, "203.0.113.2") == other
