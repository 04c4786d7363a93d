"""The processes of Ray, and what they are given: https://docs.ray.io/en/latest/cluster/cli.html.

They stand beside node hosts and not above them: Ray ends whatever runs below it a minute after its
head is lost, and what is loaded is to go on answering.
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
from stoker.client.errors import CliError
from stoker.cluster.member import Member, Program
from stoker.runtime.ray.groups import LABEL
from stoker.store.db import Database
from stoker.store.secret import ServerSecret

_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_OBJECTS_BYTES = 80 << 20
"""Of Ray's own store, which nothing of ours uses: about the least that it takes."""
_THEIR_FOLDER = "/tmp/ray"  # noqa: S108 - Ray's own default
HEAD_S = 120.0
_LOOK_S = 0.1
_PREFIX = "stoker-ray-"
_SOCKETS_BYTES = 40
"""How long the path of Ray's folder may be: its sockets lie 62 bytes deeper, and the kernel takes
107."""


def check_installed() -> None:
    """Raises `CliError` where Ray is not."""
    if find_spec("ray") is None:
        raise CliError("Ray is not installed here.", hint=f"Install it: {install_command('ray')}")


async def shared_token(settings: Settings, database_url: str, data_dir: Path) -> str:
    """What everybody of one Ray shows the others: made of the servers' secret, so that whoever may
    speak to their database may join, and nobody else."""
    database = Database(database_url, connections=2)
    try:
        await database.migrate()
        secret = ServerSecret(data_dir, given=settings.given_secret, waits=True)
        await secret.agree(database)
        return secret.sign("member of a Ray cluster")
    except OSError as error:
        hint = "Look at STOKER_DATABASE_URL, and whether this machine may reach it."
        raise CliError(f"The database cannot be reached: {error}", hint=hint) from error
    finally:
        await database.close()


def new_folder() -> TemporaryFolder:
    """Creates a folder for the logs and sockets of one Ray on this machine."""
    base = Path(tempfile.gettempdir())
    if len(bytes(base)) > _SOCKETS_BYTES - len(f"/{_PREFIX}12345678"):
        base = Path("/tmp")  # noqa: S108 - the folder in it is ours alone
    return TemporaryFolder(_PREFIX, base)


def environment(token: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of a process of Ray, or that speaks to it.

    Where RAY_AUTH_TOKEN is set, it is the token: what KubeRay adds to our processes (its
    autoscaler, and whoever waits for the head) has to show it, too, and knows no secret of ours.
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
    """Ray's head, on which nothing is placed.

    Args:
        port: where nodes find it.
        start: the command instead, as KubeRay makes it.
    """
    own = ["--head", f"--port={port}", "--include-dashboard=false", "--memory=0", "--num-gpus=0"]
    # By it Ray takes nodes that wait for the head to be back for a head that is there.
    files = Path(option(start, "--temp-dir") or _THEIR_FOLDER) if start else folder
    stale = files / "ray_current_cluster"
    return _program("ray-head", start or _start(own, folder, host), "", env, stale)


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
    """Ray on a node.

    Args:
        address: `host:port` of the head.
        memory_bytes: what may be given away of this machine.
        start: the command instead, as KubeRay makes it.
    """
    own = [f"--address={address}"]
    added = f"--memory={memory_bytes} --labels={LABEL}={node_id}"
    return _program(name, start or _start(own, folder, host), added, env)


async def wait_listening(port: int, head: Member) -> None:
    """Until the head can be reached here. Raises `CliError` where it takes too long."""
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
    given = [
        *own,
        *([f"--node-ip-address={host}"] if host else []),
        f"--temp-dir={folder}",
        # Nothing runs in it but what it needs itself. Graphics devices it finds.
        "--num-cpus=0",
        f"--object-store-memory={_OBJECTS_BYTES}",
        "--include-log-monitor=false",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--block",
    ]
    return shlex.join(["ray", "start", *given])


def _program(
    name: str, start: str, added: str, env: Mapping[str, str], stale: Path | None = None
) -> Program:
    """
    Raises `CliError` where the command does not start Ray.
    """
    words = [*shlex.split(start), *shlex.split(added)]
    if words[:2] != ["ray", "start"] or "--block" not in words:
        raise CliError(
            f"That does not start Ray: {start}",
            hint="It is to be `ray start … --block`, as KubeRay's KUBERAY_GEN_RAY_START_CMD is.",
        )
    command = ("-m", "ray.scripts.scripts", *words[1:])
    return Program(name=name, command=command, env=env, stale=stale, has_work=False)


def option(start: str, name: str) -> str:
    """What a command of somebody else's says of an option; nothing where it does not."""
    words = [part for word in shlex.split(start) for part in word.split("=", 1)]
    return words[words.index(name) + 1] if name in words[:-1] else ""


def placer(address: str, data_dir: Path, env: Mapping[str, str]) -> Program:
    """Who places leases, beside the head."""
    command = ("-m", "stoker", "node", "place", "--address", address, "--data-dir", str(data_dir))
    return Program(name="placer", command=command, env=env, has_work=False)
