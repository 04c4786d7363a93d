import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.agents.support import FRANCE, PARIS


def test_a_run_answers_and_is_erased(
    smoke: httpx.Client, deployed: Callable[[str], dict[str, Any]]
) -> None:
    deployed("tiny-chat")
    body = {"name": "guide", "model": "tiny-chat", "config": {"temperature": 0}}
    agent = smoke.post("/v1/agent", json=body).raise_for_status().json()
    runs = f"/v1/agent/{agent['id']}/runs"
    run = smoke.post(runs, json={"input": FRANCE}).raise_for_status().json()
    deadline = time.monotonic() + 60
    while run["status"] not in ("completed", "failed"):
        assert time.monotonic() < deadline, run
        time.sleep(0.05)
        run = smoke.get(f"{runs}/{run['id']}").raise_for_status().json()
    assert PARIS in str(run["output"])
    smoke.delete(f"{runs}/{run['id']}").raise_for_status()
    assert smoke.get(f"{runs}/{run['id']}").status_code == 404
