"""The command line covers the API: a command calls each management route of a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from stoker.client.client import ApiRequest, Client
from stoker.client.file_upload import PART_BYTES
from tests.cli.support import Cli, until
from tests.demo.conftest import HUB_MODEL
from tests.demo.test_answers import QUESTION, WEATHER
from tests.deployments.routes import INFERENCE
from tests.deployments.support import bert
from tests.support import contract
from tests.support.contract import Operation, operations
from tests.support.server import Server
from tools.stand_ins.model_hub import ModelHub

FILES = "/v1/model-artifacts/{artifact_id}/uploads/{upload_id}/files/{path}"
FILE_UPLOAD, RESPONSE = "/v1/uploads/{file_upload_id}", "/v1/responses/{response_id}"
FOR_SDKS = "for OpenAI's clients, which make stored responses"
WITHOUT_COMMAND = {
    Operation("HEAD", FILES): "for clients that resume a file by its offset; push lists parts",
    Operation("POST", f"{FILE_UPLOAD}/cancel"): "push cancels an upload that fails",
    Operation("GET", RESPONSE): FOR_SDKS,
    Operation("DELETE", RESPONSE): FOR_SDKS,
    Operation("GET", f"{RESPONSE}/input_items"): FOR_SDKS,
    Operation("POST", f"{RESPONSE}/cancel"): FOR_SDKS,
    Operation("GET", "/metrics"): "for Prometheus",
    Operation("POST", "/console/session"): "for browsers",
    Operation("GET", "/console/session"): "for browsers",
    Operation("DELETE", "/console/session"): "for browsers",
}
"""Maps each route that no command calls to the reason."""
SUNNY = '{"temperature": 21, "condition": "sunny"}'


def managing() -> list[Operation]:
    called = {path.replace(":path}", "}") for path in INFERENCE} - {"/v1/models"}
    return [operation for operation in operations() if operation.path not in called]


@pytest.fixture(scope="module")
def called(
    demo: Server, state: Any, hub: ModelHub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[set[Operation]]:
    """Runs the commands below. Yields the operations that they called."""
    called_operations: set[Operation] = set()
    exchange = Client._exchange

    def noted(self: Client, request: ApiRequest, *, stream: bool) -> Any:
        if operation := contract.operation_of(request.method, request.path):
            called_operations.add(operation)
        return exchange(self, request, stream=stream)

    folder = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "_exchange", noted)
        operator = Cli(demo.base_url, demo.operator_key)
        owner = Cli(demo.base_url, state["account_key"])
        team = accounts(operator)
        imports(team, hub)
        artifacts(team, folder)
        keys(team)
        agents(owner, folder)
        media(owner, folder)
        batches(owner, folder)
        money(owner, operator)
        cards(owner)
        team.json("deployments", "delete", "renamed/tagger", "--yes")
        yield called_operations


def good(cli: Cli, *arguments: str, stdin: str = "") -> str:
    done = cli.run(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accounts(operator: Cli) -> Cli:
    """Creates an account and a key by commands. Returns a command line with that key."""
    account = operator.json("accounts", "create", "commands")["id"]
    assert account in [entry["id"] for entry in operator.json("accounts", "list")]
    limited = operator.json("accounts", "limit", account, "agents=5")
    assert operator.json("accounts", "show", account) == limited
    assert limited["quotas"] == {"agents": 5}
    operator.json("credits", "grant", account, "5")
    scope = ("--scope", "account", "--account-id", account)
    key = good(operator, "keys", "create", *scope).strip()
    # An operator sees an account's objects by naming the account.
    assert operator.run("deployments", "list").returncode == 1
    assert operator.json("--account", account, "deployments", "list") == []
    gone = operator.json("accounts", "create", "gone")["id"]
    assert operator.json("accounts", "delete", gone, "--yes")["deleted"] is True
    team = Cli(operator.base_url, key)
    assert team.json("accounts", "quotas")["quotas"]["agents"] == {"used": 0, "limit": 5}
    return team


def imports(team: Cli, hub: ModelHub) -> None:
    artifact = team.json("artifacts", "import", HUB_MODEL)
    assert (artifact["status"], artifact["origin"]["repo_id"]) == ("ready", HUB_MODEL)
    assert not team.json("artifacts", "upgrade", artifact["id"])["is_newer"]
    # The import takes long enough to be cancelled.
    with mock.patch.object(hub, "pace_s", 0.5):
        begun = {"repo_id": HUB_MODEL}
        path = f"/v1/model-artifacts/{artifact['id']}/imports"
        Client(team.base_url, team.key).post(path, begun)
        assert team.json("artifacts", "cancel", artifact["id"])["deleted"]
    assert team.json("artifacts", "show", artifact["id"])["status"] == "ready"
    assert team.json("artifacts", "delete", artifact["id"], "--yes")["deleted"]


def artifacts(team: Cli, folder: Path) -> None:
    team.json("doctor")
    pushed = team.json("artifacts", "push", str(bert()), "--name", "first")["id"]
    assert team.json("artifacts", "rename", pushed, "second")["display_name"] == "second"
    assert team.json("artifacts", "show", pushed)["display_name"] == "second"
    assert [entry["id"] for entry in team.json("artifacts", "list")] == [pushed]
    # Leaves an upload open, as an interrupted push does.
    server = Client(team.base_url, team.key)
    server.post(f"/v1/model-artifacts/{pushed}/uploads")
    assert team.json("artifacts", "abandon", pushed, "--yes")["deleted"]
    assert team.run("artifacts", "abandon", pushed, "--yes").returncode == 1
    assert team.json("artifacts", "show", pushed)["status"] == "ready"

    # An empty file has no parts.
    copy = folder / "copy"
    copy.mkdir()
    for path in bert().iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "merges.txt").touch()
    # The rejected file is deleted before the second push.
    (copy / "stray.json").write_bytes(b"\x80\x02}q\x00.")
    assert team.run("artifacts", "push", str(copy)).returncode == 1
    (copy / "stray.json").unlink()
    other = team.json("artifacts", "push", str(copy))["id"]
    assert team.json("artifacts", "delete", other, "--yes")["deleted"]

    team.json("deploy", "renamed/tagger", pushed, "--max-queue", "9")
    deployments(team, "renamed/tagger", folder)


def deployments(team: Cli, model: str, folder: Path) -> None:
    made = team.json("deployments", "show", model)
    changed = team.json(
        "deployments", "update", model, "--readiness", "warm", "--dtype", "bfloat16",
        "--engine", "torch", "--device", "cpu", "--max-replicas", "2", "--idle-timeout", "60",
        "--max-queue", "7", "--keep", "90",
    )  # fmt: skip
    expected = {
        "readiness": "warm",
        "dtype": "bfloat16",
        "engine": "torch",
        "device": "cpu",
        "replicas": {"min": 0, "max": 2},
        "idle_timeout_s": 60.0,
        "max_queue": 7,
        "keep_s": 90.0,
    }
    assert {name: changed[name] for name in expected} == expected
    assert (changed["status"], changed["id"]) == ("ready", made["id"])
    changed = team.json("deployments", "update", model, "--min-replicas", "1", "--no-wait")
    assert changed["replicas"] == {"min": 1, "max": 2}
    assert changed["max_queue"] == 7
    assert "60 s" in good(team, "deployments", "update", model, "--min-replicas", "0")

    refused = team.run("deployments", "update", model, "--config", "weight_format=int4")
    assert (refused.returncode, "weight_format" in refused.stderr) == (1, True)
    assert team.run("deployments", "update", model).returncode == 2
    assert team.run("deployments", "update", model, "--config", "int8").returncode == 2

    tuned = team.json("tune", model, "--engine", "torch", "--dtype", "float32")
    assert [row["status"] for row in tuned["rows"]] == ["measured"]
    assert team.json("tune", model, "--last") == tuned

    checks = folder / "checks.json"
    entry = {"name": "a name", "request": {"inputs": "Clara"}, "expect": {"status": 200}}
    checks.write_text(json.dumps([entry]))
    assert team.json("check", model, "--put", str(checks))["is_passed"]
    assert team.json("check", model, "--show")["checks"] == [entry]

    numbers = [entry["number"] for entry in team.json("versions", "list", model)]
    added = team.json("versions", "add", model, "--dtype", "float32", "--note", "for a look")
    assert (added["status"], added["number"]) == ("live", numbers[0] + 1)
    back = team.json("versions", "rollback", model)
    assert (back["status"], back["number"]) == ("live", numbers[0])
    promoted = team.json("versions", "promote", model, str(added["number"]))
    assert promoted["id"] == added["id"]
    shares = (f"{numbers[0]}=30", f"{added['number']}=70")
    directed = team.json("versions", "traffic", model, *shares, "--sticky", "key")
    assert directed["traffic"]["weights"] == {back["id"]: 30, added["id"]: 70}
    mirror = ("--mirror", f"{back['id']}=50")
    mirrored = team.json("versions", "traffic", model, f"{added['id']}=100", *mirror)
    assert mirrored["traffic"]["mirror"] == {back["id"]: 50}
    assert team.json("versions", "compare", model, back["id"])["failed"] == 0
    team.json("versions", "traffic", model, f"{added['id']}=100")
    assert team.run("versions", "traffic", model, "1:100").returncode == 2
    assert team.json("versions", "show", model, added["id"])["is_loaded"]
    assert team.json("versions", "delete", model, str(numbers[-1]), "--yes")["deleted"]

    assert model in [entry["id"] for entry in team.json("models")]
    assert team.json("call", model, "Clara")
    assert sum(filter(None, team.json("deployments", "metrics", model)["requests"]["ok"])) > 0
    assert "P50 MS" in good(team, "deployments", "metrics", model)
    assert {entry["model"] for entry in team.json("machine")["replicas"]} == {model}
    assert model in good(team, "machine")
    assert team.json("deployments", "stop", model)["desired"] == "stopped"
    assert team.json("deployments", "start", model)["status"] == "ready"
    team.json("deployments", "logs", model)
    assert team.json("deployments", "events", model)
    assert [entry["model"] for entry in team.json("deployments", "list")] == [model]


def cards(owner: Cli) -> None:
    artifact = owner.json("deployments", "show", "tiny-ner")["artifact_id"]
    card = owner.json("artifacts", "card", artifact)["card"]
    assert card.strip() == good(owner, "artifacts", "card", artifact).strip()
    assert "tiny-ner" in card


def keys(team: Cli) -> None:
    made = team.json(
        "keys", "create", "--deployment", "renamed/tagger", "--requests-per-minute", "60"
    )
    shown = team.json("keys", "show", made["id"])
    assert (shown["requests_per_minute"], "key" in shown) == (60, False)
    assert "requests per minute" in good(team, "keys", "show", made["id"])
    assert team.json("keys", "change", made["id"], "--may-prioritize")["may_prioritize"]
    assert team.json("keys", "rotate", made["id"])["key"] != made["key"]
    assert made["id"] in [entry["id"] for entry in team.json("keys", "list")]
    assert team.json("keys", "revoke", made["id"], "--yes")["deleted"]


def agents(owner: Cli, folder: Path) -> None:
    tools = folder / "tools.json"
    tools.write_text(json.dumps([WEATHER]))
    agent = owner.json("agents", "create", "forecast", "tiny-chat", "--tools", str(tools))["id"]
    changed = owner.json(
        "agents", "update", "forecast", "--instructions", "Be brief.", "--max-steps", "4",
        "--config", "temperature=0", "--name", "weather report",
    )  # fmt: skip
    assert (changed["instructions"], changed["max_steps"]) == ("Be brief.", 4)
    assert (changed["config"]["temperature"], changed["name"]) == (0, "weather report")
    assert changed["tools"], "what is not named stays"
    assert owner.json("agents", "update", agent, "--instructions", "")["instructions"] is None
    assert owner.run("agents", "update", agent).returncode == 2
    assert owner.json("agents", "show", agent)["id"] == agent
    assert agent in [entry["id"] for entry in owner.json("agents", "list")]

    run = owner.json("agents", "run", agent, QUESTION, "--no-wait")["id"]
    ended = json.loads(good(owner, "agents", "follow", agent, run, "--json", stdin=f"{SUNNY}\n"))
    assert ended["output"] == "It is 21 degrees and sunny in Paris."
    # Following the run again requests no tool output.
    good(owner, "agents", "follow", agent, run)
    assert owner.json("agents", "show", agent, run)["status"] == "completed"
    assert owner.json("agents", "events", agent, run)[0]["type"] == "run.created"
    assert [entry["id"] for entry in owner.json("agents", "runs", agent)] == [run]
    other = owner.json("agents", "run", agent, QUESTION, "--no-wait")["id"]
    owner.json("agents", "cancel", agent, other)
    assert owner.json("agents", "erase", agent, run, "--yes")["deleted"]
    assert owner.json("agents", "delete", agent, "--yes")["deleted"]


def media(owner: Cli, folder: Path) -> None:
    film = folder / "film.mp4"
    job = owner.json(
        "video", "random-video-maker", "a boat", "-p", "num_inference_steps=1", "-o", str(film)
    )
    assert film.stat().st_size > 0
    assert owner.json("videos", "show", job["id"])["status"] == "completed"
    assert job["id"] in [entry["id"] for entry in owner.json("videos", "list")]
    listed = [entry for entry in owner.json("files", "list") if entry["purpose"] == "video"]
    file = owner.json("files", "show", listed[0]["id"])
    copy = folder / "copy.mp4"
    written = owner.json("files", "download", file["id"], "-o", str(copy))
    assert (written["file"], copy.stat().st_size) == (str(copy), file["bytes"])
    assert owner.json("files", "delete", file["id"], "--yes")["deleted"]
    assert owner.json("videos", "delete", job["id"], "--yes")["deleted"]


def batches(owner: Cli, folder: Path) -> None:
    texts, answers = folder / "texts.txt", folder / "answers.jsonl"
    texts.write_text("The food was great.\nThe food was not good at all.\n")
    batch = owner.json("batch", "run", str(texts), "--model", "tiny-sentiment", "-o", str(answers))
    labels = [json.loads(line)["response"]["body"][0]["label"] for line in answers.open()]
    assert labels == ["positive", "negative"]
    assert owner.json("batch", "show", batch["id"])["status"] == "completed"
    assert batch["id"] in [entry["id"] for entry in owner.json("batch", "list")]
    # A batch that has ended cannot be cancelled.
    assert owner.run("batch", "cancel", batch["id"], "--yes").returncode == 1
    large = folder / "large.bin"
    large.write_bytes(bytes(PART_BYTES + 1))
    file = owner.json("files", "push", str(large), "--purpose", "user_data")
    assert file["bytes"] == PART_BYTES + 1
    assert owner.json("files", "delete", file["id"], "--yes")["deleted"]


def money(owner: Cli, operator: Cli) -> None:
    # The next tick records the calls above.
    until(lambda: "calls" in {entry["type"] for entry in owner.json("usage", "--events")})
    assert "tiny-chat" in good(owner, "usage", "--events")
    assert owner.json("usage")["total"]["requests"] > 0
    assert owner.json("credits")["balance"]
    assert "opening" in {entry["kind"] for entry in owner.json("credits", "transfers")}
    assert operator.json("cluster", "status") is not None
    assert operator.json("prices", "set", "1", "1")["version"]
    assert owner.json("prices")


@pytest.mark.parametrize("operation", managing(), ids=str)
def test_a_command_calls_it(called: set[Operation], operation: Operation) -> None:
    assert (operation in called) != (operation in WITHOUT_COMMAND), WITHOUT_COMMAND.get(operation)
