"""Stored responses count towards the storage of their account."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.openai.conftest import RANDOM as MODEL
from tests.openai.support import replayed
from tests.openai.test_responses import PATH
from tests.openai.test_stored_responses import ended, error_of
from tests.support.deploying import deploy
from tests.support.server import Server

LARGE = "x" * 40_000
BODY: dict[str, Any] = {
    "model": MODEL,
    "input": [{"role": "user", "content": text} for text in (LARGE, "short")],
    "truncation": "auto",
    "max_output_tokens": 8,
}
STORING: tuple[dict[str, Any], ...] = (
    {"store": True},
    {"store": True, "stream": True},
    {"background": True},
    {"background": True, "stream": True},
)


@pytest.fixture(scope="module")
def own(server: Server, random_folder: Path) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("storage") as client:
        deploy(client, random_folder, MODEL)
        yield client


@pytest.fixture
def limit(own: httpx.Client, server: Server) -> Iterator[Callable[[int], None]]:
    """Yields a function that limits the storage of the account to a number of further bytes."""
    path = f"/v1/accounts/{own.account_id}"  # type: ignore[attr-defined]
    with server.client(server.operator_key) as operator:

        def allow(more: int | None) -> None:
            allowed = None if more is None else used(own) + more
            body = {"quotas": {"storage_bytes": allowed}}
            operator.patch(path, json=body).raise_for_status()

        yield allow
        allow(None)


def used(own: httpx.Client) -> int:
    return own.get("/v1/quotas").json()["quotas"]["storage_bytes"]["used"]


def ask(own: httpx.Client, **fields: Any) -> httpx.Response:
    return own.post(PATH, json={**BODY, **fields})


def test_counted(own: httpx.Client) -> None:
    before = used(own)
    stored = ask(own, store=True).raise_for_status().json()
    foreground = used(own) - before
    assert 40_000 < foreground < 43_000
    queued = ask(own, background=True).raise_for_status().json()
    assert used(own) > before + foreground + 40_000
    ended(own, queued["id"])
    with_request = used(own)
    own.delete(f"{PATH}/{stored['id']}").raise_for_status()
    assert used(own) == with_request - foreground
    own.delete(f"{PATH}/{queued['id']}").raise_for_status()
    assert used(own) == before


def test_full(own: httpx.Client, limit: Callable[[int], None]) -> None:
    before = used(own)
    limit(30_000)
    for fields in STORING:
        error = error_of(ask(own, **fields), 413)
        assert error["code"] == "quota_exceeded"
        assert "stored responses" in error["message"]
    assert used(own) == before
    for fields in ({}, {"store": False}, {"store": False, "stream": True}):
        assert ask(own, **fields).status_code == 200
    assert ask(own, store=True, input="short").status_code == 200


def test_a_repeat_of_a_full_account(own: httpx.Client, limit: Callable[[int], None]) -> None:
    headers = {"idempotency-key": "full"}
    body = {**BODY, "background": True}
    first = own.post(PATH, json=body, headers=headers).raise_for_status().json()
    ended(own, first["id"])
    limit(0)
    assert own.post(PATH, json=body, headers=headers).json()["id"] == first["id"]


def test_room_after_deletion(own: httpx.Client, limit: Callable[[int], None]) -> None:
    first = ask(own, store=True).raise_for_status().json()
    limit(0)
    error_of(ask(own, store=True), 413)
    own.delete(f"{PATH}/{first['id']}").raise_for_status()
    final = replayed(ask(own, store=True, stream=True).content)[-1]["response"]
    assert own.get(f"{PATH}/{final['id']}").json() == final
