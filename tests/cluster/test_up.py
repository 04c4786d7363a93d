"""`stoker cluster up`: the processes that it starts, keeps and leaves behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import openai
import psutil
import pytest

from stoker.client.errors import StokerError
from stoker.cluster import postgres as programs
from stoker.cluster.child import Child
from stoker.cluster.member import FleetProcess, Program
from stoker.cluster.postgres import Postgres
from tests.agents.conftest import MODEL, MODELS
from tests.agents.support import FRANCE, PARIS
from tests.cli.support import Cli, environment
from tests.cluster.support import PATIENCE_S, Cluster, left
from tests.demo.sentences import NER
from tests.servers.support import until
from tests.support import postgres
from tests.support.deploying import deploy, deployment, wait_for

ROOT = Path(__file__).parents[2]
NAMES = {"node-1", "node-2", "gateway-1", "gateway-2", "postgres"}


def ask(sdk: openai.OpenAI) -> str | None:
    messages: list[Any] = [{"role": "user", "content": FRANCE}]
    completion = sdk.chat.completions.create(model="chat", messages=messages, temperature=0)
    return completion.choices[0].message.content


def sdks(cluster: Cluster, key: str) -> list[openai.OpenAI]:
    """Returns the official client of each gateway. It retries requests that may be retried."""
    return [
        openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=5) for url in cluster.gateways
    ]


class Used:
    """An account with a chat model, pushed and deployed through the first gateway."""

    def __init__(self, cluster: Cluster) -> None:
        with cluster.account("fleet") as client:
            self.key = client.headers["authorization"].removeprefix("Bearer ")
            chat = deploy(client, MODEL, "chat", engine="torch", readiness="warm")
            wait_for(client, chat["id"], "ready")
        self.deployment_id = chat["id"]


@pytest.fixture(scope="module")
def used(cluster: Cluster) -> Used:
    return Used(cluster)


def test_says_what_there_is(cluster: Cluster) -> None:
    state = cluster.said()
    assert list(state) == [
        "gateways", "nodes", "head", "database_url", "operator_key_file", "pid",
    ]  # fmt: skip
    assert len(set(state["gateways"])) == len(state["nodes"]) == 2
    assert (state["head"], state["pid"]) == (None, cluster.process and cluster.process.pid)
    assert Path(state["operator_key_file"]).read_text().strip() == cluster.operator_key
    assert (cluster.data_dir / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert {path.stem for path in (cluster.data_dir / "logs").iterdir()} == NAMES
    for node in state["nodes"]:
        assert node["id"].startswith("node_")
        assert "host" in psutil.Process(node["pid"]).cmdline()


async def test_the_database_opens_to_who_has_its_password_alone(cluster: Cluster) -> None:
    url = cluster.said()["database_url"].replace("+asyncpg", "")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url, password="guessed")
    password = (cluster.data_dir / "postgres" / "password").read_text().strip()
    connection = await asyncpg.connect(url, password=password)
    assert await connection.fetchval("SELECT count(*) FROM nodes") == 2
    await connection.close()


def test_nodes_share_the_machine(cluster: Cluster) -> None:
    """All nodes together may hold as much memory as one server."""
    environments = [psutil.Process(entry["pid"]).environ() for entry in cluster.said()["nodes"]]
    budgets = {int(entry["STOKER_MEMORY_BUDGET_MIB"]) for entry in environments}
    assert len(budgets) == 1
    with cluster.client(cluster.operator_key) as operator:
        memory = operator.get("/v1/machine").raise_for_status().json()["memory"]
    assert memory["budget_bytes"] == 2 * budgets.pop() << 20
    assert memory["budget_bytes"] <= 0.8 * psutil.virtual_memory().total


def test_any_gateway_answers(cluster: Cluster, used: Used) -> None:
    on_a, on_b = sdks(cluster, used.key)
    until(lambda: "chat" in {entry.id for entry in on_b.models.list()})
    assert [ask(entry) for entry in (on_a, on_b)] == [PARIS, PARIS]


def test_a_node_that_was_killed_comes_back_as_itself(cluster: Cluster, used: Used) -> None:
    """The killed node has the replica.

    Calls continue on another node, or on this one after its restart.
    """
    before = cluster.said()["nodes"]
    with cluster.client(used.key) as client:
        (worker,) = deployment(client, used.deployment_id)["workers"]
    (killed,) = (
        entry
        for entry in before
        if worker["pid"] in [child.pid for child in psutil.Process(entry["pid"]).children(True)]
    )
    gone = psutil.Process(killed["pid"]).children(recursive=True)
    os.kill(killed["pid"], signal.SIGKILL)
    assert [ask(entry) for entry in sdks(cluster, used.key)] == [PARIS, PARIS]
    assert not left(gone, within_s=PATIENCE_S), "its replicas have outlived it"

    def is_back() -> bool:
        return all(psutil.pid_exists(node["pid"]) for node in cluster.said()["nodes"])

    until(is_back, PATIENCE_S)
    after = cluster.said()["nodes"]
    assert [entry["id"] for entry in after] == [entry["id"] for entry in before]
    assert sum(entry != other for entry, other in zip(after, before, strict=True)) == 1
    log = cluster.log.read_text()
    assert "was ended by SIGKILL. It is restarted in 0.5 s." in log
    until(lambda: "is running again" in cluster.log.read_text())


def test_a_gateway_that_was_killed_comes_back_where_it_was(cluster: Cluster, used: Used) -> None:
    before = cluster.said()["gateways"]
    state = cluster.data_dir / "gateway-2" / "server.json"
    os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
    until(lambda: "gateway-2 is running again" in cluster.log.read_text(), PATIENCE_S)
    assert cluster.said()["gateways"] == before
    assert [ask(sdk) for sdk in sdks(cluster, used.key)] == [PARIS, PARIS]


def test_what_the_guide_shows(cluster: Cluster, tmp_path: Path) -> None:
    """The commands of the guide's second terminal work as shown."""
    page = (ROOT / "docs" / "guide" / "fleet.md").read_text()
    script = page.partition("```sh\n")[2]
    (tmp_path / "fleet").symlink_to(cluster.data_dir)
    done = subprocess.run(
        ["bash", "-euc", script.partition("```")[0]],
        cwd=tmp_path,
        env=environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "acct_" in done.stdout
    assert "for replicas" in done.stdout


def test_another_one_in_its_folder_is_refused(cluster: Cluster) -> None:
    done = refused(cluster.data_dir)
    assert (done.returncode, done.stdout) == (1, "")
    pid = cluster.said()["pid"]
    assert f"is in use by process {pid}." in done.stderr
    assert pid == (cluster.process and cluster.process.pid)


@pytest.mark.release
def test_nothing_outlives_it_and_the_next_goes_on(cluster: Cluster, used: Used) -> None:
    before, processes = cluster.said(), cluster.processes()
    assert len(processes) > len(NAMES)
    cluster.kill()
    assert not left(processes, within_s=PATIENCE_S)
    cluster.start_with("--demo")
    after = cluster.said()
    assert [entry["id"] for entry in after["nodes"]] == [entry["id"] for entry in before["nodes"]]
    with cluster.client(used.key) as client:
        assert [entry["model"] for entry in client.get("/v1/deployments").json()["data"]] == [
            "chat"
        ]
    assert [ask(entry) for entry in sdks(cluster, used.key)] == [PARIS, PARIS]


@pytest.mark.release
def test_has_the_demo(cluster: Cluster, used: Used) -> None:
    """The demo is deployed. The previous test starts the fleet with `--demo`."""
    path = cluster.data_dir / "demo.json"
    demo = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert demo["base_url"] == cluster.gateways[0]
    assert set(demo["deployments"]) == {entry.name for entry in MODELS.iterdir()}
    log = cluster.log.read_text()
    assert f"export STOKER_API_KEY={demo['account_key']}" in log
    assert "Deploying the demo's models: 1 of" in log
    [text, entities] = NER[0]
    for url in cluster.gateways:
        with cluster.client(demo["deployments"]["tiny-ner"]["key"], url) as client:
            body = {"inputs": text, "aggregation_strategy": "simple"}
            tags = client.post("/v1/classifications/token", json=body).raise_for_status().json()
        tagged = [(text[entry["start"] : entry["end"]], entry["entity_group"]) for entry in tags]
        assert tagged == [tuple(entity) for entity in entities]


def test_ends_in_order(cluster: Cluster) -> None:
    processes = cluster.processes()
    assert cluster.stop() == 0
    assert not left(processes)
    assert not (cluster.data_dir / "cluster.json").exists()
    logged = cluster.log.read_text()
    ends = [logged.rindex(f"Ending {group}") for group in ("gateways", "nodes", "PostgreSQL")]
    assert ends == sorted(ends)
    assert "killed" not in logged[ends[0] :]
    log = (cluster.data_dir / "logs" / "postgres.log").read_text()
    assert log.rstrip().endswith("database system is shut down")


class TestPostgres:
    @pytest.fixture
    def database(self, tmp_path: Path) -> Postgres:
        if not postgres.is_installed():
            pytest.skip(postgres.MISSING)
        return Postgres(tmp_path / "postgres", tmp_path / "log", connections=250)

    async def test_goes_on_with_what_is_there(self, database: Postgres) -> None:
        """The database keeps its data, also after a kill.

        Its user may not reach the folder.
        """
        messages: list[str] = []
        await database.start(messages.append)
        connection = await asyncpg.connect(database.url.replace("+asyncpg", ""))
        assert await connection.fetchval("SHOW max_connections") == "250"
        await connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        await connection.close()
        database.child.signal(signal.SIGKILL)
        assert await database.child.wait() == "was ended by SIGKILL"
        await database.stop()
        await database.start(messages.append)
        connection = await asyncpg.connect(database.url.replace("+asyncpg", ""))
        assert await connection.fetchval("SELECT one FROM kept") == 1
        await connection.close()
        await database.stop()
        assert not database.child.is_running
        starting = "Starting PostgreSQL …"
        assert messages == ["Creating a database …", starting, starting]


def test_all_ends_where_the_database_does(tmp_path: Path) -> None:
    """The fleet ends with its database and reports the database's last messages."""
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", *up(tmp_path), "--nodes", "1", "--gateways", "1"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    while line := process.stderr.readline():
        if line.startswith("Starting 1 node and 1 gateway"):
            break
    started = psutil.Process(process.pid).children(recursive=True)
    pid = int((tmp_path / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    stderr = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 1
    assert "Error: PostgreSQL was ended by SIGKILL." in stderr
    assert "database system is ready to accept connections" in stderr
    assert not left(started, within_s=PATIENCE_S)


class TestRefusals:
    """Errors that are reported before any process is started."""

    def test_without_postgresql(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(programs, "DEBIAN", tmp_path)
        with pytest.raises(StokerError, match="is not installed") as refused:
            Postgres(tmp_path / "postgres", tmp_path / "log", connections=1)
        assert refused.value.hint
        assert "apt-get install postgresql" in refused.value.hint

    def test_another_database(self, tmp_path: Path) -> None:
        done = refused(tmp_path, STOKER_DATABASE_URL="sqlite+aiosqlite:///x.db")
        assert done.returncode == 2
        assert "A fleet needs a PostgreSQL" in done.stderr

    def test_a_servers_folder(self, tmp_path: Path) -> None:
        (tmp_path / "server.json").touch()
        done = refused(tmp_path)
        assert done.returncode == 2
        assert "is the data folder of a server" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["server.json"]


class TestMember:
    async def test_one_that_does_not_start_is_shown(self, tmp_path: Path) -> None:
        """A member that fails its first start is not retried: it may never be able to start."""
        messages: list[str] = []
        program = Program(
            name="node-1",
            command=("-m", "stoker", "node", "no-such-thing"),
            env=environment(),
            state=tmp_path / "node-1" / "node.json",
        )
        member = FleetProcess(program, tmp_path / "node-1.log", messages.append)
        with pytest.raises(StokerError, match="node-1 has ended with exit code 2") as failed:
            await member.start()
        assert failed.value.hint
        assert "No such command 'no-such-thing'" in failed.value.hint
        assert messages == []
        assert await member.stop(within_s=0)

    def test_what_was_logged_in_json_is_shown_as_it_was_said(self, tmp_path: Path) -> None:
        child = Child("gateway-1", tmp_path / "log")
        record = {"level": "error", "event": "Traceback:\n  a line\nOSError: it is full"}
        child.log.write_text(json.dumps(record) + "\nError: no JSON\n")
        assert child.last_lines().splitlines() == [
            "Traceback:", "  a line", "OSError: it is full", "Error: no JSON",
        ]  # fmt: skip


def up(data_dir: Path) -> tuple[str, ...]:
    return ("cluster", "up", "--port", "0", "--data-dir", str(data_dir))


def refused(data_dir: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return Cli("http://127.0.0.1:9", settings=env).run(*up(data_dir))
