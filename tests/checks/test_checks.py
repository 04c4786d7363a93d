"""Checks over HTTP and from the command line, on real replicas."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from tests.checks.support import doubling
from tests.cli.support import Cli
from tests.deployments.support import DEPLOYMENTS, check_error, deploy, upload
from tests.support.server import Server

INVALID = (400, "InvalidRequestError", "invalid_request")
CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
TEXT = "Clara lives in Bonn"


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("checks") as client:
        yield client


@pytest.fixture(scope="module")
def tagger(server: Server, client: httpx.Client) -> dict[str, Any]:
    return deploy(client, upload(server, client), "checked")


def path_of(deployment: dict[str, Any], tail: str = "") -> str:
    return f"{DEPLOYMENTS}/{deployment['id']}/checks{tail}"


def put(client: httpx.Client, deployment: dict[str, Any], *checks: Any) -> httpx.Response:
    return client.put(path_of(deployment), json={"checks": list(checks)})


def ran(client: httpx.Client, deployment: dict[str, Any]) -> Any:
    return client.post(path_of(deployment, "/run")).raise_for_status().json()


def answered(client: httpx.Client) -> Any:
    body = {"model": "checked", "inputs": TEXT}
    return client.post("/v1/classifications/token", json=body).raise_for_status().json()


def test_pass_and_fail(client: httpx.Client, tagger: dict[str, Any]) -> None:
    answer = answered(client)
    top = max(answer, key=lambda row: row["score"])["entity"]
    checks = [
        {"name": "same", "request": {"inputs": TEXT}, "expect": {"equal": answer}},
        {"name": "top", "request": {"inputs": TEXT}, "expect": {"top_label": top}},
        {"name": "other", "request": {"inputs": TEXT}, "expect": {"top_label": "nothing"}},
        {"name": "refused", "request": {"inputs": 7}, "expect": {"status": 400}},
        {"name": "not refused", "request": {"inputs": TEXT}, "expect": {"status": 400}},
    ]
    stored = put(client, tagger, *checks).raise_for_status().json()
    assert stored["checks"] == checks
    assert stored["report"] is None
    report = ran(client, tagger)
    passed = {row["name"]: row["is_passed"] for row in report["results"]}
    assert passed == {
        "same": True,
        "top": True,
        "other": False,
        "refused": True,
        "not refused": False,
    }
    assert list(passed) == [row["name"] for row in checks]
    assert report["is_passed"] is False
    messages = {row["name"]: row["message"] for row in report["results"]}
    assert f"'{top}' and not 'nothing'" in messages["other"]
    assert "200 and not 400" in messages["not refused"]
    assert client.get(path_of(tagger)).raise_for_status().json()["report"] == report


def test_others_take_their_place(client: httpx.Client, tagger: dict[str, Any]) -> None:
    valid_check = {"name": "a", "request": {"inputs": TEXT}, "expect": {"status": 200}}
    put(client, tagger, valid_check).raise_for_status()
    assert ran(client, tagger)["is_passed"]
    assert put(client, tagger).raise_for_status().json()["checks"] == []
    assert client.get(path_of(tagger)).json()["report"] is None
    answer = client.post(path_of(tagger, "/run"))
    check_error(answer, 409, "ConflictError", "no_checks", "checks")


@pytest.mark.parametrize(
    ("check", "param"),
    [
        ({"expect": {}}, "checks[0].expect"),
        ({"expect": {"status": 99}}, "checks[0].expect.status"),
        ({"expect": {"top_label": 1}}, "checks[0].expect.top_label"),
        ({"expect": {"like": "x"}}, "checks[0].expect.like"),
        (
            {"expect": {"cosine_min": {"vector": [1], "min": 0}}},
            "checks[0].expect.cosine_min.vector",
        ),
        ({"expect": {"json_schema": {"type": "x"}}}, "checks[0].expect.json_schema"),
        ({"request": {"inputs": 7}}, "checks[0].request"),
        ({"request": {"inputs": "x", "model": "y"}}, "checks[0].request"),
        ({"request": {}}, "checks[0].request"),
        ({"name": ""}, "checks[0].name"),
    ],
)
def test_no_check(
    client: httpx.Client, tagger: dict[str, Any], check: dict[str, Any], param: str
) -> None:
    valid_check = {"name": "a", "request": {"inputs": TEXT}, "expect": {"status": 200}}
    check_error(put(client, tagger, valid_check | check), *INVALID, param)


def test_too_many_and_twice(client: httpx.Client, tagger: dict[str, Any]) -> None:
    valid_check = {"name": "a", "request": {"inputs": TEXT}, "expect": {"status": 200}}
    many = [valid_check | {"name": str(number)} for number in range(101)]
    check_error(put(client, tagger, *many), *INVALID, "checks")
    check_error(put(client, tagger, valid_check, valid_check), *INVALID)


@pytest.mark.case(27)
def test_an_endless_schema_holds_no_other_account(
    server: Server, client: httpx.Client, tagger: dict[str, Any]
) -> None:
    valid_check = {"name": "a", "request": {"inputs": TEXT}}
    refused = put(client, tagger, valid_check | {"expect": {"json_schema": doubling(64)}})
    check_error(refused, *INVALID, "checks[0].expect.json_schema")
    assert "steps" in refused.json()["error"]["message"]
    endless = {"expect": {"json_schema": doubling(64, by_anchors=True)}}
    put(client, tagger, valid_check | endless).raise_for_status()
    with server.account() as other, ThreadPoolExecutor(1) as thread:
        running = thread.submit(ran, client, tagger)
        longest = 0.0
        while not running.done():
            began = time.perf_counter()
            other.get(DEPLOYMENTS).raise_for_status()
            other.get("/health").raise_for_status()
            longest = max(longest, time.perf_counter() - began)
    (result,) = running.result()["results"]
    assert not result["is_passed"]
    assert "longer than 2 s" in result["message"]
    assert longest < 1.5


def test_nobody_elses(server: Server, tagger: dict[str, Any]) -> None:
    with server.account() as other:
        for answer in (
            other.get(path_of(tagger)),
            put(other, tagger),
            other.post(path_of(tagger, "/run")),
        ):
            check_error(answer, 404, "NotFoundError", "deployment_not_found")


def test_go_with_their_deployment(server: Server, client: httpx.Client) -> None:
    made = deploy(client, upload(server, client), "passing")
    valid_check = {"name": "a", "request": {"inputs": TEXT}, "expect": {"status": 200}}
    put(client, made, valid_check).raise_for_status()
    client.delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()
    answer = client.get(path_of(made))
    check_error(answer, 404, "NotFoundError", "deployment_not_found")


def test_by_command(
    server: Server, client: httpx.Client, tagger: dict[str, Any], tmp_path: Path
) -> None:
    cli = Cli(server.base_url, client.headers["authorization"].removeprefix("Bearer "))
    file = tmp_path / "checks.json"
    good = {"name": "good", "request": {"inputs": TEXT}, "expect": {"status": 200}}
    bad = {"name": "bad", "request": {"inputs": TEXT}, "expect": {"top_label": "nothing"}}
    file.write_text(json.dumps([good]))
    assert cli.json("check", "checked", "--put", str(file))["is_passed"]
    file.write_text(json.dumps({"checks": [good, bad]}))
    done = cli.run("check", "checked", "--put", str(file))
    assert done.returncode == 1
    assert "not 'nothing'" in done.stdout.replace("\n", " ")
    assert [row["name"] for row in cli.json("check", "checked", "--show")["checks"]] == [
        "good",
        "bad",
    ]
    assert "top_label" in cli.run("check", "checked", "--show").stdout
    file.write_text("{")
    assert cli.run("check", "checked", "--put", str(file)).returncode == 2
