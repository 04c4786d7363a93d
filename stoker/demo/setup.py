"""Deploys the demo models over the server's API, like any user."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.base.private_files import write_private
from stoker.client.client import Client
from stoker.client.errors import ApiError
from stoker.client.push import Uploader
from stoker.client.selection import select
from stoker.demo.examples import EXAMPLES, MEDIA, SHOWN
from stoker.models.tasks.registry import TASKS
from stoker.server.bootstrap import ACCOUNT_FILE

MODELS = Path(__file__).parent / "models"
STATE = "demo.json"


class _Quiet:
    """Upload progress that is not shown, because the models are tiny."""

    def advance(self, count: int) -> None: ...

    def file_done(self, path: str) -> None: ...

    def note(self, message: str) -> None: ...


@dataclass
class Demo:
    base_url: str
    operator_key: str
    account_key: str = ""
    deployments: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def as_json(self) -> str:
        return json.dumps(self.__dict__, indent=2) + "\n"


def set_up(
    base_url: str, data_dir: Path, deploying: Callable[[int, int], None] = lambda _at, _of: None
) -> Demo:
    """Deploys every missing demo model and writes DATA_DIR/demo.json. Blocking.

    Args:
        data_dir: the data folder, which also holds the file with the operator's key.
        deploying: called with the number of the next model, from 1, and the total.
    """
    operator_key = (data_dir / "operator-key").read_text().strip()
    demo = _remembered(base_url, data_dir) or _new_demo(base_url, data_dir, operator_key)
    client = Client(base_url, demo.account_key)
    deployed = {row["model"]: row for row in client.pages("/v1/deployments")}
    folders = sorted(path for path in MODELS.iterdir() if path.is_dir())
    for number, folder in enumerate(folders, 1):
        deploying(number, len(folders))
        if folder.name not in deployed or folder.name not in demo.deployments:
            row = deployed.get(folder.name) or _deploy(client, folder)
            demo.deployments[folder.name] = _with_key(client, row)
    write_private(data_dir / STATE, demo.as_json())
    return demo


def _remembered(base_url: str, data_dir: Path) -> Demo | None:
    """Returns the demo of an earlier start if its keys still work."""
    try:
        state = json.loads((data_dir / STATE).read_text())
        demo = Demo(**state | {"base_url": base_url})
        Client(base_url, demo.account_key).get("/v1/models")
    except (OSError, ValueError, TypeError, ApiError):
        return None
    return demo


def _new_demo(base_url: str, data_dir: Path, operator_key: str) -> Demo:
    """Returns a demo in the account of the server's first start. Creates an account if the key of
    that account does not work.
    """
    try:
        key = (data_dir / ACCOUNT_FILE).read_text().strip()
        Client(base_url, key).get("/v1/models")
    except (OSError, ApiError):
        key = _new_account(base_url, operator_key)
    return Demo(base_url, operator_key, key)


def _new_account(base_url: str, operator_key: str) -> str:
    """Creates an account. Returns its key."""
    client = Client(base_url, operator_key)
    account = client.post("/v1/accounts", {"name": "demo"})
    body = {"scope": "account", "account_id": account["id"], "name": "demo"}
    return client.post("/v1/api-keys", body)["key"]


def _deploy(client: Client, folder: Path) -> dict[str, Any]:
    uploader = Uploader(client, select(folder).files, _Quiet())
    artifact = uploader.create_artifact(folder.name, None)
    session = uploader.open(artifact["id"])
    uploader.send(session)
    artifact = uploader.complete(session)
    if failure := artifact.get("failure"):
        raise RuntimeError(f"the demo model {folder.name} was refused: {failure['message']}")
    body = {"model": folder.name, "artifact_id": artifact["id"], "readiness": "cold"}
    return client.post("/v1/deployments", body)


def _with_key(client: Client, row: Mapping[str, Any]) -> dict[str, str]:
    body = {"scope": "deployment", "deployment_ids": [row["id"]], "name": row["model"]}
    key = client.post("/v1/api-keys", body)["key"]
    return {"id": row["id"], "pipeline": row["pipeline"], "key": key}


def calls(demo: Demo, data_dir: Path) -> str:
    """Returns the commands for a second terminal."""
    lines = [
        f"export STOKER_BASE_URL={demo.base_url}",
        f"export STOKER_API_KEY={demo.account_key}",
        "",
    ]
    for name in SHOWN:
        call = EXAMPLES[name].curl(TASKS[name].path, "$STOKER_BASE_URL", "$STOKER_API_KEY")
        lines += [f"# {EXAMPLES[name].model}: {name}", call, ""]
    lines += ["# tiny-chat: text-generation", 'stoker chat tiny-chat "What is 7 plus 5?"', ""]
    seeing = f'stoker chat tiny-vision "What is in the picture?" --image {MEDIA}/scene.png'
    lines += ["# tiny-vision: image-text-to-text", seeing, ""]
    lines.append(
        f"{len(demo.deployments)} models are deployed; docs/tasks.md has a call for every endpoint."
    )
    lines.append(f"A key for each model is in {data_dir / STATE}.")
    return "\n".join(lines)
