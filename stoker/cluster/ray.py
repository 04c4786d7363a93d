"""Processes of Ray and their arguments: https://docs.ray.io/en/latest/cluster/cli.html.

They run next to node hosts and not as their parents. Ray ends all of its child processes a minute
after its head is lost, but loaded models must continue to answer.
"""

import asyncio
import os
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from stoker.base.config import Settings
from stoker.base.extras import install_command
from stoker.base.temporary_folder import TemporaryFolder
from stoker.client.errors import StokerError
from stoker.cluster.member import FleetProcess, Program
from stoker.runtime.ray.groups import LABEL
from stoker.store.db import Database
from stoker.store.schema import SchemaError
from stoker.store.secret import ServerSecret

_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_OBJECTS_BYTES = 80 << 20
"""Size of Ray's object store in bytes, about the minimum that Ray accepts. Stoker does not use the
store.
"""
_THEIR_FOLDER = "/tmp/ray"  # noqa: S108 - Ray's own default
HEAD_S = 120.0
_LOOK_S = 0.1
_PREFIX = "stoker-ray-"
_SOCKETS_BYTES = 40
"""Maximum length of the path of Ray's folder in bytes. Its sockets are 62 bytes deeper, and the
kernel accepts 107.
"""


def check_installed() -> None:
    """Raises `StokerError` if Ray is not installed."""
    if find_spec("ray") is None:
        raise StokerError(
            "Ray is not installed here.", hint=f"Install it: {install_command('ray')}"
        )


async def shared_token(settings: Settings, database_url: str, data_dir: Path) -> str:
    """Returns the token that all members of one Ray cluster share. It is derived from the servers'
    secret, so that exactly the processes with access to their database can join.
    """
    database = Database(database_url, connections=2)
    try:
        await database.migrate()
        secret = ServerSecret(data_dir, given=settings.given_secret, waits=True)
        await secret.agree(database)
        return secret.sign("member of a Ray cluster")
    except SchemaError as error:
        raise StokerError(str(error)) from error
    except OSError as error:
        hint = "Check STOKER_DATABASE_URL, and that this machine can reach the database."
        raise StokerError(f"The database cannot be reached: {error}", hint=hint) from error
    finally:
        await database.close()


def new_folder() -> TemporaryFolder:
    """Creates a folder for the logs and sockets of one Ray on this machine."""
    base = Path(tempfile.gettempdir())
    if len(bytes(base)) > _SOCKETS_BYTES - len(f"/{_PREFIX}12345678"):
        base = Path("/tmp")  # noqa: S108 - the folder in it is ours alone
    return TemporaryFolder(_PREFIX, base)


def environment(token: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment of a process that belongs to Ray or connects to it.

    If RAY_AUTH_TOKEN is set, it is the token. The processes that KubeRay adds (its autoscaler, and
    processes that wait for the head) need it too, but do not know Stoker's secret.
    """
    return {
        **env,
        "RAY_AUTH_MODE": "token",
        _TOKEN: env.get(_TOKEN) or token,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def head(
    port: int, folder: Path, env: Mapping[str, str], *, start: str = "", host: str | None = None
) -> Program:
    """Returns the program of Ray's head, which runs no leases.

    Args:
        port: the port for nodes.
        start: a command to use instead, as created by KubeRay.
    """
    options = [
        "--head",
        f"--port={port}",
        "--include-dashboard=false",
        "--memory=0",
        "--num-gpus=0",
    ]
    # With this file, Ray mistakes nodes that wait for the head's return for a running head.
    files = Path(option(start, "--temp-dir") or _THEIR_FOLDER) if start else folder
    stale = files / "ray_current_cluster"
    return _program("ray-head", start or _start(options, folder, host), "", env, stale)


def raylet(
    name: str,
    address: str,
    *,
    node_id: str,
    memory_bytes: int,
    folder: Path,
    env: Mapping[str, str],
    start: str = "",
    host: str | None = None,
) -> Program:
    """Returns the program of Ray on a node.

    Args:
        address: `host:port` of the head.
        memory_bytes: memory of this machine that Ray may assign.
        start: a command to use instead, as created by KubeRay.
    """
    options = [f"--address={address}"]
    added = f"--memory={memory_bytes} --labels={LABEL}={node_id}"
    return _program(name, start or _start(options, folder, host), added, env)


async def wait_listening(port: int, head: FleetProcess) -> None:
    """Waits until the head accepts connections on this machine. Raises `StokerError` after a
    timeout.
    """
    deadline = time.monotonic() + HEAD_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > deadline:
                raise head.failed(f"did not listen within {HEAD_S:.0f} s") from None
            await asyncio.sleep(_LOOK_S)
        else:
            writer.close()
            return


def _start(own: Sequence[str], folder: Path, host: str | None) -> str:
    arguments = [
        *own,
        *([f"--node-ip-address={host}"] if host else []),
        f"--temp-dir={folder}",
        # Ray runs only its own processes. It detects graphics devices itself.
        "--num-cpus=0",
        f"--object-store-memory={_OBJECTS_BYTES}",
        "--include-log-monitor=false",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--block",
    ]
    return shlex.join(["ray", "start", *arguments])


def _program(
    name: str, start: str, added: str, env: Mapping[str, str], stale: Path | None = None
) -> Program:
    """Returns the program for a Ray command. Raises `StokerError` if the command does not start
    Ray.
    """
    words = [*shlex.split(start), *shlex.split(added)]
    if words[:2] != ["ray", "start"] or "--block" not in words:
        raise StokerError(
            f"The command does not start Ray: {start}",
            hint="Use `ray start … --block`, as in KubeRay's KUBERAY_GEN_RAY_START_CMD.",
        )
    command = ("-m", "ray.scripts.scripts", *words[1:])
    return Program(name=name, command=command, env=env, stale=stale, has_work=False)


def option(start: str, name: str) -> str:
    """Returns the value of an option in an external command. Empty if it is not set."""
    words = [part for word in shlex.split(start) for part in word.split("=", 1)]
    return words[words.index(name) + 1] if name in words[:-1] else ""


def placer(address: str, data_dir: Path, env: Mapping[str, str]) -> Program:
    """Returns the program of the placer, which runs next to the head."""
    command = ("-m", "stoker", "node", "place", "--address", address, "--data-dir", str(data_dir))
    return Program(name="placer", command=command, env=env, has_work=False)
