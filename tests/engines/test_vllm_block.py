"""The guide's block about vLLM: installs it (2 GB, some minutes), deploys a model on it, and
compares the answers with torch's.
"""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.support import Cli
from tests.support.doc_runs import block_of
from tests.support.server import Server, running

MODEL = Path(__file__).parents[2] / "stoker" / "demo" / "models" / "tiny-chat"
HAS_GPU = shutil.which("nvidia-smi") is not None
TIMEOUT_S = 2400
PROMPTS = ["What colour is grass?", "What sound does a cow make?"]

pytestmark = [pytest.mark.release, pytest.mark.one_machine, pytest.mark.timeout(TIMEOUT_S)]


def answer(client: httpx.Client, model: str, text: str) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 32,
    }
    headers = {"prefer": "wait=600"}
    response = client.post("/v1/chat/completions", json=body, headers=headers, timeout=660)
    return response.raise_for_status().json()["choices"][0]["message"]


@pytest.mark.skipif("STOKER_VLLM_PYTHON" in os.environ, reason="the server has vLLM")
def test_block_of_the_guide(tmp_path: Path) -> None:
    text = block_of("docs/guide/language-models.md", "stoker engines install vllm").text
    commands = [shlex.split(line, comments=True)[1:] for line in text.splitlines()]
    assert [command[0] for command in commands] == ["engines", "engines", "deploy"]
    install, shown, deploy = commands
    if not HAS_GPU:
        install.append("--cpu")
    with running(tmp_path / "data") as server:
        cli = signed_in(server)
        installed = cli.run(*install)
        assert installed.returncode == 0, installed.stderr
        assert "vllm" in cli.run(*shown).stdout

        artifact = cli.json("artifacts", "push", str(MODEL))
        named = [artifact["id"] if word == "ARTIFACT_ID" else word for word in deploy]
        deployed = cli.run(*named)
        assert deployed.returncode == 0, deployed.stderr
        cli.json("deploy", "torch-chat", artifact["id"], "--engine", "torch")
        with server.client(cli.key) as client:
            for prompt in PROMPTS:
                assert answer(client, "chat", prompt) == answer(client, "torch-chat", prompt)


def signed_in(server: Server) -> Cli:
    """Returns a CLI of an operator on the server's machine, with an account's key."""
    with server.account("vllm") as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
    return Cli(server.base_url, key, settings={"STOKER_DATA_DIR": str(server.data_dir)})
