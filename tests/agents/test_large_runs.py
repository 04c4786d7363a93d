"""Runs with inputs of the maximum size. Creating, getting and listing them blocks no other request.

(The watchdog of the tests' servers fails a test if one step computes for too long.)
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
"""Inputs that are each about as large as permitted: in characters, messages and objects."""


@pytest.mark.parametrize(
    "kind", ["a text", pytest.param("texts", marks=pytest.mark.release), "parts"]
)
def test_m4_large_inputs(account: Account, kind: str):
    agent = account.agent()
    runs = [account.run(agent, TEXTS[kind]) for _ in range(6)]
    listed_ids: list[str] = []
    page = {"has_more": True, "last_id": None}
    pages = 0
    while page["has_more"]:
        after = {"after": page["last_id"]} if page["last_id"] else {}
        page = account.get(f"{agent}/runs", order="asc", limit=100, **after)
        assert all(item["input"] == TEXTS[kind] for item in page["data"])
        listed_ids += [item["id"] for item in page["data"]]
        pages += 1
    assert [f"{agent}/runs/{item}" for item in listed_ids] == runs
    assert pages > 1
    for run in runs:
        assert account.get(run)["input"] == TEXTS[kind]
        account.until(run)
    assert account.client.delete(agent).status_code == 200
    assert account.client.get(runs[0]).status_code == 404
