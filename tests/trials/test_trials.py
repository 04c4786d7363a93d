"""Trials over HTTP and by the command, on real replicas."""

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.workloads.evaluation.trials.service import QUEUED
from tests.artifacts.support import eventually
from tests.cli.support import Cli
from tests.deployments.support import DEPLOYMENTS, TEXT, TOKENS, call, check_error, key_for
from tests.support.deploying import deploy
from tests.support.server import Server

INVALID = (400, "InvalidRequestError", "invalid_request")
EXAMPLES = [{"inputs": TEXT}, {"inputs": [f"{TEXT} and hers is not", "berlin"]}]
DEADLINE_S = 240
NER = Path(stoker.demo.__file__).parent / "models" / "tiny-ner"


def path_of(deployment: dict[str, Any], trial: dict[str, Any] | None = None) -> str:
    tail = f"/{trial['id']}" if trial else ""
    return f"{DEPLOYMENTS}/{deployment['id']}/trials{tail}"


def begun(client: httpx.Client, deployment: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = client.post(path_of(deployment), json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def ended(client: httpx.Client, deployment: dict[str, Any], trial: dict[str, Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while trial["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline, trial
        time.sleep(0.1)
        trial = client.get(path_of(deployment, trial)).raise_for_status().json()
    return trial


def tried(client: httpx.Client, deployment: dict[str, Any], **body: Any) -> Any:
    trial = ended(client, deployment, begun(client, deployment, **body))
    assert trial["status"] == "completed", trial
    return trial


def scores(client: httpx.Client, model: str) -> list[tuple[str, float]]:
    answers = [
        client.post(TOKENS, json={**example, "model": model}).raise_for_status().json()
        for example in EXAMPLES
    ]
    lists = [answers[0], *answers[1]]
    return [(token["entity"], token["score"]) for tokens in lists for token in tokens]


def workers(client: httpx.Client, deployment: dict[str, Any]) -> set[str]:
    answer = client.get(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status().json()
    return {worker["id"] for worker in answer["workers"]}


def used_by(client: httpx.Client) -> list[tuple[str | None, str | None]]:
    rows = client.get("/v1/usage").raise_for_status().json()["data"]
    return [(row["deployment_id"], row["model"]) for row in rows]


@pytest.mark.release
@pytest.mark.one_machine
def test_rows_say_what_the_deployment_will_do(
    server: Server, client: httpx.Client, tagger: dict[str, Any], tmp_path: Path
) -> None:
    """A trial's results for a precision match the answers of the deployment once it runs in that
    precision.
    """
    trial = tried(client, tagger, examples=EXAMPLES, dtypes=["bfloat16"])
    assert (trial["object"], trial["examples"], trial["progress"]) == ("deployment.trial", 2, 1)
    by_way = {(row["engine"], row["dtype"]): row for row in trial["rows"]}
    assert next(iter(by_way)) == ("torch", "float32")
    assert set(by_way) == {
        ("torch", "float32"),
        ("torch", "bfloat16"),
        ("openvino", "bfloat16"),
    }
    first = by_way["torch", "float32"]
    assert (first["status"], first["difference"], first["agreement"]) == ("measured", 0, 1)
    assert first["measure"] == "top_labels"

    exact = scores(client, "tagger")
    assert (client.get(f"{DEPLOYMENTS}/{tagger['id']}").json()["dtype"]) == "auto"
    body = {"engine": "torch", "dtype": "bfloat16"}
    before = workers(client, tagger)
    client.patch(f"{DEPLOYMENTS}/{tagger['id']}", json=body).raise_for_status()
    assert eventually(lambda: workers(client, tagger).isdisjoint(before), timeout=60)
    rounded = scores(client, "tagger")
    equal = [one[0] == other[0] for one, other in zip(exact, rounded, strict=True)]
    measured = by_way["torch", "bfloat16"]
    assert measured["agreement"] == pytest.approx(sum(equal) / len(equal))
    distances = [
        abs(one[1] - other[1])
        for one, other, is_equal in zip(exact, rounded, equal, strict=True)
        if is_equal
    ]
    assert 0 < measured["difference"] == pytest.approx(max(distances))
    assert (measured["status"] == "differs") == (not all(equal))

    for row in trial["rows"]:
        if row["status"] in ("measured", "differs"):
            assert 0 < row["alone_ms"] < 60_000
            assert row["items_per_s"] > 0
            assert 1e6 < row["memory_bytes"] < 1e10
        else:
            # The processor does not support bfloat16.
            assert (row["engine"], row["status"]) == ("openvino", "failed")
            assert "does not compute in bfloat16" in row["reason"]
    # A single row of usage contains the memory of all configurations and is marked as a trial.
    assert eventually(lambda: (trial["id"], "tagger (trial)") in used_by(client))
    assert {name for _, name in used_by(client)} <= {"tagger", "tagger (trial)", None}
    # The trial leaves no deployment or model behind. Other accounts never saw it.
    assert [one["id"] for one in client.get(DEPLOYMENTS).json()["data"]] == [tagger["id"]]
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tagger"]

    owner = Cli(server.base_url, client.headers["authorization"].removeprefix("Bearer "))
    assert owner.json("tune", "tagger", "--last") == trial
    applied = owner.run("tune", "tagger", "--last", "--apply", "float32")
    assert applied.returncode == 0, applied.stderr
    assert "tagger now runs on torch in float32." in applied.stderr
    now = client.get(f"{DEPLOYMENTS}/{tagger['id']}").json()
    assert (now["engine"], now["dtype"]) == ("torch", "float32")
    refused = owner.run("tune", "tagger", "--last", "--apply", "int7")
    assert (refused.returncode, "bfloat16, float32" in refused.stderr) == (2, True)
    assert owner.run("tune", "tagger", "--last", "--engine", "torch").returncode == 2
    lines = tmp_path / "lines.txt"
    lines.write_text(f'{TEXT}\n\n{{"inputs": "berlin"}}\n')
    table = owner.run("tune", "tagger", "--examples", str(lines), "--dtype", "float32")
    assert table.returncode == 0, table.stderr
    assert "openvino" in table.stdout and "top labels" in table.stdout
    (newest, _) = client.get(path_of(tagger)).json()["data"]
    assert newest["examples"] == 2
    with closing(sqlite3.connect(server.data_dir / "stoker.db")) as database:
        result = database.execute("SELECT count(*) FROM trials WHERE examples LIKE '%berlin%'")
        assert result.fetchone() == (0,), "they were for measuring alone"
    lines.write_text("")
    assert owner.run("tune", "tagger", "--examples", str(lines)).returncode == 2
    lines.write_text("{broken")
    assert owner.run("tune", "tagger", "--examples", str(lines)).returncode == 2


@pytest.mark.release
def test_int8(client: httpx.Client) -> None:
    """int8 keeps the labels of a trained model. Agreement of an untrained model's labels would mean
    little.
    """
    ner = deploy(client, NER, "ner")
    examples = [{"inputs": text} for text in ("Anna Kowalski visited Paris.", "Siemens in Munich.")]
    trial = tried(client, ner, examples=examples, dtypes=["int8"])
    exact, rounded = trial["rows"]
    assert (exact["engine"], exact["dtype"]) == ("torch", "float32")
    assert (rounded["engine"], rounded["dtype"]) == ("openvino", "int8")
    assert (rounded["status"], rounded["agreement"]) == ("measured", 1), rounded
    assert 0 < rounded["difference"] < 0.1
    client.delete(f"{DEPLOYMENTS}/{ner['id']}").raise_for_status()


def test_made_up_examples(client: httpx.Client, tagger: dict[str, Any]) -> None:
    trial = tried(client, tagger, engines=["torch"], dtypes=["float32"])
    (row,) = trial["rows"]
    assert (trial["examples"], row["status"], row["measure"]) == (None, "measured", "top_labels")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"examples": []}, "examples"),
        ({"examples": [{"inputs": TEXT}] * 101}, "examples"),
        ({"examples": [{"inputs": TEXT}, {"inputs": 3}]}, "examples[1]"),
        ({"examples": [{}]}, "examples[0]"),
        ({"examples": [{"inputs": TEXT, "top": 1}]}, "examples[0]"),
        ({"examples": [{"inputs": TEXT, "model": "other"}]}, "examples[0]"),
        ({"examples": ["text"]}, "examples[0]"),
        ({"examples": {"inputs": TEXT}}, "examples"),
        ({"engines": ["vllm"]}, "engines[0]"),
        ({"engines": []}, "engines"),
        ({"engines": ["torch", "a\0b"]}, "engines[1]"),
        ({"dtypes": ["float8"]}, "dtypes[0]"),
        ({"rows": []}, "rows"),
    ],
)
def test_refused(
    client: httpx.Client, tagger: dict[str, Any], body: dict[str, Any], param: str
) -> None:
    check_error(client.post(path_of(tagger), json=body), *INVALID, param)


def test_an_example_that_the_model_refuses_is_told_in_the_row(
    client: httpx.Client, tagger: dict[str, Any]
) -> None:
    too_long = [{"inputs": "berlin " * 2000}]
    trial = tried(client, tagger, examples=too_long, engines=["torch"], dtypes=["float32"])
    (row,) = trial["rows"]
    assert row["status"] == "failed"
    assert "tokens" in row["reason"]
    assert row["alone_ms"] is row["agreement"] is None


def test_a_model_that_cannot_be_loaded_is_told_in_the_row(
    client: httpx.Client, sources: Path
) -> None:
    folder = sources / "broken"
    shutil.copytree(sources / "tagger", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 3}))
    body = {"model": "broken", "source": str(folder)}
    deployment = client.post(DEPLOYMENTS, json=body).raise_for_status().json()
    trial = tried(client, deployment, engines=["torch"], dtypes=["float32"])
    (row,) = trial["rows"]
    assert row["status"] == "failed"
    assert "could not be loaded" in row["reason"] or "failed to load" in row["reason"]
    client.delete(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status()
    shutil.rmtree(folder)


def test_nobody_elses(server: Server, client: httpx.Client, tagger: dict[str, Any]) -> None:
    trial = begun(client, tagger, engines=["torch"], dtypes=["float32"])
    with server.account("stranger") as stranger:
        for path in (path_of(tagger), path_of(tagger, trial)):
            check_error(stranger.get(path), 404, "NotFoundError", "deployment_not_found")
        answer = stranger.post(path_of(tagger), json={})
        check_error(answer, 404, "NotFoundError", "deployment_not_found")
    caller = {"authorization": f"Bearer {key_for(client, tagger['id'])}"}
    assert client.get(path_of(tagger, trial), headers=caller).status_code == 401
    gone = client.get(path_of(tagger, {"id": "trial_0"}))
    check_error(gone, 404, "NotFoundError", "trial_not_found")
    assert ended(client, tagger, trial)["status"] == "completed"


def test_too_many_wait(client: httpx.Client, tagger: dict[str, Any]) -> None:
    for _ in range(QUEUED):
        begun(client, tagger, engines=["torch"], dtypes=["float32"])
    answer = client.post(path_of(tagger), json={})
    check_error(answer, 429, "RateLimitError", "queue_full")
    assert int(answer.headers["retry-after"]) > 0


def test_the_same_key_makes_one(client: httpx.Client, tagger: dict[str, Any]) -> None:
    headers = {"idempotency-key": f"trial-{tagger['id']}"}
    body = {"engines": ["torch"], "dtypes": ["float32"]}
    first, second = (
        client.post(path_of(tagger), json=body, headers=headers).json()["id"] for _ in range(2)
    )
    assert first == second


def test_a_deployment_that_is_deleted_ends_its_trial(
    server: Server, client: httpx.Client, artifact: str
) -> None:
    body = {"model": "short-lived", "artifact_id": artifact}
    deployment = client.post(DEPLOYMENTS, json=body).raise_for_status().json()
    trial = begun(client, deployment)
    deadline = time.monotonic() + DEADLINE_S
    while not client.get(path_of(deployment, trial)).json()["rows"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.delete(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status()
    answer = client.get(path_of(deployment, trial))
    check_error(answer, 404, "NotFoundError", "deployment_not_found")
    # The deleted deployment does not delay the next trial.
    other = client.post(DEPLOYMENTS, json=body).raise_for_status().json()
    tried(client, other, engines=["torch"], dtypes=["float32"])
    client.delete(f"{DEPLOYMENTS}/{other['id']}").raise_for_status()


@pytest.mark.release
def test_a_killed_server_goes_on_with_it(restartable: Server, sources: Path) -> None:
    with restartable.account("killed") as client:
        body = {"model": "tagger", "source": str(sources / "tagger")}
        deployment = client.post(DEPLOYMENTS, json=body).raise_for_status().json()
        # Configurations without a conversion. Results measured so far are kept, for any engine.
        options = {"engines": ["torch"], "dtypes": ["bfloat16", "float16"]}
        trial = begun(client, deployment, examples=EXAMPLES, **options)
        deadline = time.monotonic() + DEADLINE_S
        while not (rows := client.get(path_of(deployment, trial)).json()["rows"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        restartable.kill()
        restartable.restart()
        restartable.wait_ready()
        result = ended(client, deployment, {**trial, "status": "queued"})
        assert result["status"] == "completed", result
        ways = [(row["engine"], row["dtype"]) for row in result["rows"]]
        assert len(set(ways)) == len(ways) == 3
        assert json.dumps(result["rows"][0]["difference"]) == "0.0"
        assert rows[0]["status"] == "measured"
        assert call(client, "tagger").status_code == 200
        client.delete(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status()
