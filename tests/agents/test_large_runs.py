"""Runs whose inputs are as large as they may be: making, getting and listing them holds nobody up.

(The watch of the tests' servers makes a test fail in which a step computes for too long.)
"""

import pytest

from tests.agents.support import Account

TEXTS = {
    "a text": "word " * 200_000,
    "texts": [{"role": "user", "content": "word " * 90}] * 4096,
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "a, b"}] * 38} for _ in range(400)
    ],
}
"""What is said, each about as much as is taken: in characters, messages, and objects."""


@pytest.mark.parametrize("kind", TEXTS)
def test_m4_large_inputs(account: Account, kind: str):
    agent = account.agent()
    runs = [account.run(agent, TEXTS[kind]) for _ in range(6)]
    seen: list[str] = []
    page = {"has_more": True, "last_id": None}
    pages = 0
    while page["has_more"]:
        after = {"after": page["last_id"]} if page["last_id"] else {}
        page = account.get(f"{agent}/runs", order="asc", limit=100, **after)
        assert all(one["input"] == TEXTS[kind] for one in page["data"])
        seen += [one["id"] for one in page["data"]]
        pages += 1
    assert [f"{agent}/runs/{one}" for one in seen] == runs
    assert pages > 1
    for run in runs:
        assert account.get(run)["input"] == TEXTS[kind]
        account.until(run)
    assert account.client.delete(agent).status_code == 200
    assert account.client.get(runs[0]).status_code == 404
