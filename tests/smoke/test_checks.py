from collections.abc import Callable
from typing import Any

import httpx


def test_a_wrong_answer_fails_its_check(
    smoke: httpx.Client, deployed: Callable[[str], dict[str, Any]]
) -> None:
    path = f"/v1/deployments/{deployed('tiny-sentiment')['id']}/checks"
    request = {"inputs": "What a wonderful day."}
    labels = ("positive", "negative")
    checks = [
        {"name": label, "request": request, "expect": {"top_label": label}} for label in labels
    ]
    smoke.put(path, json={"checks": checks}).raise_for_status()
    report = smoke.post(f"{path}/run").raise_for_status().json()
    passed = {result["name"]: result["is_passed"] for result in report["results"]}
    assert passed == {"positive": True, "negative": False}
