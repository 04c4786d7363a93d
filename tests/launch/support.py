"""A chat model with a long context whose answers follow a script, and a proxy that refuses."""

import contextlib
import json
import shutil
import socketserver
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import stoker.demo
from tests.support.deploying import wait_for

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
PLUGIN = Path(__file__).parent / "plugin"
POSITIONS = 200_000

Step = dict[str, str | bool]


def long_model(folder: Path, *, positions: int = POSITIONS, template: str | None = None) -> Path:
    """Copies the demo's chat model, with another length of its context."""
    shutil.copytree(MODEL, folder)
    for name, field in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {field: positions}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def step(when: str, text: str = "", *calls: str) -> Step:
    """Returns a step: the model writes text and calls if the newest messages contain `when`.

    Args:
        when: regular expression. In the text, `\\1` stands for its first group.
        calls: results of `call`.
    """
    return {"when": when, "say": "\n".join(part for part in (text, *calls) if part)}


def aside(when: str, text: str) -> Step:
    """Returns the answer to all prompts that contain `when`, outside of the order."""
    return {"when": when, "say": text, "aside": True}


def call(name: str, **arguments: Any) -> str:
    """Returns a tool call in the format of the model."""
    written = json.dumps({"name": name, "arguments": arguments}).replace("\\", "\\\\")
    return f"<tool_call>\n{written}\n</tool_call>"


def deploy_script(
    client: httpx.Client, artifact_id: str, model: str, steps: Sequence[Step]
) -> None:
    """Deploys the model with a script, and waits until it is loaded."""
    body = {
        "model": model,
        "artifact_id": artifact_id,
        "engine": "script",
        "readiness": "hot",
        "config": {"script": steps},
    }
    answer = client.post("/v1/deployments", json=body)
    assert answer.status_code == 201, answer.text
    wait_for(client, answer.json()["id"], "ready")


@dataclass(frozen=True)
class RefusingProxy:
    url: str
    requests: list[str]
    """First lines of the refused requests."""


@contextlib.contextmanager
def refusing_proxy() -> Generator[RefusingProxy]:
    """Runs a proxy that refuses all requests, so that no program leaves this machine."""
    requests: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            requests.append(self.rfile.readline().decode(errors="replace").strip())
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield RefusingProxy(f"http://127.0.0.1:{server.server_address[1]}", requests)
        finally:
            server.shutdown()
