"""The blocks about containers and Kubernetes, without a container engine and without a cluster.

The programs `podman`, `docker`, `helm`, `kubectl` and `mmdebstrap` are recorded. Everything else in
the blocks runs. Their arguments must fit the image, the compose file, the chart and each other.
"""

import re
import shlex
import shutil
import stat
import subprocess
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.base.config import Settings
from stoker.server.bootstrap import ACCOUNT_FILE, FILE
from stoker.server.health import router
from tests.packaging.conftest import MISSING, ROOT
from tests.packaging.recipe import read_stages, read_steps
from tests.packaging.test_chart import rendered
from tests.packaging.test_compose import COMPOSE, interpolated
from tests.support.commands import check_command
from tests.support.doc_runs import block_of
from tests.support.recording import recorded

pytestmark = MISSING
NEEDS_OPENSSL = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
CONTAINERS = "docs/containers.md"


def engine() -> ArgumentParser:
    """Returns a parser of the used commands of Podman and Docker, with their own options."""
    parser = ArgumentParser(exit_on_error=False)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build")
    build.add_argument("--format", choices=["docker", "oci"])
    build.add_argument("-t", "--tag", required=True)
    build.add_argument("-f", "--file", default="Containerfile")
    build.add_argument("context")
    run = commands.add_parser("run")
    run.add_argument("-d", "--detach", action="store_true")
    run.add_argument("--name", required=True)
    run.add_argument("-p", "--publish", required=True)
    run.add_argument("-v", "--volume", required=True)
    run.add_argument("image")
    execute = commands.add_parser("exec")
    execute.add_argument("container")
    execute.add_argument("words", nargs=REMAINDER)
    imported = commands.add_parser("import")
    imported.add_argument("-c", "--change")
    imported.add_argument("path")
    imported.add_argument("image")
    compose = commands.add_parser("compose")
    compose.add_argument("--profile", action="append", default=[])
    services = compose.add_subparsers(dest="action", required=True)
    up = services.add_parser("up")
    up.add_argument("--build", action="store_true")
    up.add_argument("-d", "--detach", action="store_true")
    up.add_argument("--wait", action="store_true")
    service = services.add_parser("exec")
    service.add_argument("service")
    service.add_argument("words", nargs=REMAINDER)
    return parser


def parsed(parser: ArgumentParser, calls: Sequence[Sequence[str]]) -> Iterator[Namespace]:
    for _, *words in calls:
        yield parser.parse_args(words)


def is_key_file(words: list[str]) -> bool:
    """Returns True for a command that prints a key that the server wrote into its volume."""
    return words in (["cat", f"/data/{FILE}"], ["cat", f"/data/{ACCOUNT_FILE}"])


@pytest.mark.parametrize(
    ("page", "beginning"),
    [(CONTAINERS, "podman build"), ("docs/guide/installation.md", "docker build")],
)
def test_image(page: str, beginning: str, tmp_path: Path) -> None:
    calls = recorded(tmp_path, block_of(page, beginning).text, "podman", "docker", "curl")
    build, run, waiting, execute = calls
    assert {build[0], run[0], execute[0]} == {beginning.split(maxsplit=1)[0]}
    # The container starts in the background. Its first start writes the key.
    assert "--retry-all-errors" in waiting and waiting[-1].endswith("/ready")
    build, run, execute = parsed(engine(), [build, run, execute])
    assert waiting[-1] == f"http://{run.publish.rpartition(':')[0]}/ready"
    assert (ROOT / build.context / build.file).exists()
    last = read_stages()[-1].last
    assert run.image == build.tag
    assert run.detach and run.publish == f"127.0.0.1:{last['EXPOSE']}:{last['EXPOSE']}"
    assert last["VOLUME"] == f'["{run.volume.partition(":")[2]}"]'
    assert execute.container == run.name
    assert is_key_file(execute.words)
    # Docker's format keeps the health check, which Podman's own format has no place for.
    assert build.format == ("docker" if beginning.startswith("podman") else None)


class ComposeReader:
    """A reader of the page in a folder with its results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def follow(self, beginning: str) -> tuple[list[list[str]], dict[str, Any]]:
        """Runs a block. Returns its calls, and the compose file with the block's variables."""
        text = block_of(CONTAINERS, beginning).text
        calls = recorded(self.folder, text, "docker", "curl")
        lines = (self.folder / ".env").read_text().splitlines()
        variables = dict(line.split("=", 1) for line in lines)
        return calls, yaml.safe_load(interpolated(COMPOSE.read_text(), variables))

    def check_services(self, calls: list[list[str]], compose: dict[str, Any]) -> None:
        """Checks that the commands are complete, and that the named service runs then."""
        up, execute = parsed(engine(), [call for call in calls if call[0] == "docker"])
        # Without `--wait`, the next commands would run before the servers have started.
        assert (up.action, up.build, up.detach, up.wait) == ("up", True, True, True)
        assert execute.action == "exec"
        service = compose["services"][execute.service]
        assert {*service.get("profiles", [])} <= {*up.profile}
        if execute.words[0] == "stoker":
            check_command(shlex.join(execute.words))
        else:
            assert is_key_file(execute.words)


@NEEDS_OPENSSL
def test_compose(tmp_path: Path) -> None:
    reader = ComposeReader(tmp_path)
    calls, compose = reader.follow("umask 077")
    reader.check_services(calls, compose)

    secret = tmp_path / compose["secrets"]["stoker-secret"]["file"]
    assert stat.S_IMODE(secret.stat().st_mode) == 0o444
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    settings = Settings(_env_file=None, secret_file=secret)  # type: ignore[call-arg]
    assert settings.given_secret == secret.read_bytes().strip()
    passwords = [line.partition("=")[2] for line in (tmp_path / ".env").read_text().splitlines()]
    assert len({*passwords}) == 3 and all(len(password) >= 20 for password in passwords)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600

    (curl,) = (call for call in calls if call[0] == "curl")
    published = [
        f"http://{port.rpartition(':')[0]}"
        for name, service in compose["services"].items()
        if name.startswith("gateway-")
        for port in service["ports"]
    ]
    paths = [getattr(route, "path", "") for route in router.routes]
    assert curl[1] in [f"{published[0]}{path}" for path in paths]
    (other,) = re.findall(r"# and (\d+)", block_of(CONTAINERS, "umask 077").text)
    assert published[1].endswith(f":{other}")

    calls, compose = reader.follow("echo STOKER_RUNTIME=ray")
    reader.check_services(calls, compose)
    assert compose["services"]["gateway-1"]["environment"]["STOKER_RUNTIME"] == "ray"


@NEEDS_OPENSSL
def test_chart(tmp_path: Path) -> None:
    """The values are valid, and each Secret that the pods read was created with its keys."""
    text = block_of("docs/kubernetes.md", "cat > stoker.yaml").text
    calls = recorded(tmp_path, text, "kubectl", "helm")
    parser = ArgumentParser(exit_on_error=False)
    kinds = parser.add_subparsers(dest="action", required=True)
    install = kinds.add_parser("install")
    install.add_argument("name")
    install.add_argument("chart")
    install.add_argument("-f", "--values", required=True)
    create = kinds.add_parser("create")
    create.add_argument("kind", choices=["secret"])
    create.add_argument("type", choices=["generic"])
    create.add_argument("name")
    create.add_argument("--from-literal", action="append", required=True)
    *secrets, installed = parsed(parser, calls)
    assert [program for program, *_ in calls] == ["kubectl"] * len(secrets) + ["helm"]
    created = {
        secret.name: dict(literal.split("=", 1) for literal in secret.from_literal)
        for secret in secrets
    }
    assert (ROOT / installed.chart / "Chart.yaml").exists()
    values = yaml.safe_load((tmp_path / installed.values).read_text())
    documents = rendered(values, installed.name)
    read = [secret for document in documents for secret in secrets_of(document)]
    assert {name for name, _ in read} == {*created}
    assert [(name, key) for name, key in read if key and key not in created[name]] == []
    # A Secret without a key becomes variables.
    assert [*created["stoker-bucket"]] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    assert ("stoker-bucket", None) in read
    secret = created["stoker"]["stoker-secret"]
    assert Settings(_env_file=None, secret=secret).given_secret  # type: ignore[call-arg]


def secrets_of(document: Any) -> Iterator[tuple[str, str | None]]:
    """Yields names and keys of the Secrets that a document reads. Without a key, it reads all."""
    if isinstance(document, list):
        for part in document:
            yield from secrets_of(part)
    elif isinstance(document, dict):
        for name, part in document.items():
            if name in ("secretKeyRef", "secretRef"):
                yield part["name"], part.get("key")
            else:
                yield from secrets_of(part)


def test_base_image(tmp_path: Path) -> None:
    """The substitute has the name and the Python of the base image."""
    text = block_of("CONTRIBUTING.md", "mmdebstrap").text
    bootstrap, load = recorded(tmp_path, text, "mmdebstrap", "podman")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--variant", choices=["minbase"])
    parser.add_argument("--include", type=lambda names: names.split(","))
    parser.add_argument("--customize-hook", action="append")
    parser.add_argument("suite")
    parser.add_argument("target")
    (made,) = parsed(parser, [bootstrap])
    (imported,) = parsed(engine(), [load])
    assert imported.path == made.target
    steps = read_steps()
    (python,) = [value for name, value in steps if name == "ARG" and value.startswith("PYTHON=")]
    (base,) = {
        value for name, value in steps if name == "FROM" and "$" in value and "AS" not in value
    }
    tag = python.partition("=")[2]
    assert imported.image == base.replace("${PYTHON}", tag)
    assert tag.endswith(f"-{made.suite}")
    # The steps use it to make the environment.
    assert {"python3", "python3-venv", "python3-pip", "ca-certificates"} <= {*made.include}
    root = tmp_path / "root"
    marker = root / "usr" / "lib" / "python3.11" / "EXTERNALLY-MANAGED"
    marker.parent.mkdir(parents=True)
    marker.touch()
    (root / "usr" / "local" / "bin").mkdir(parents=True)
    for hook in made.customize_hook:
        subprocess.run(["sh", "-euc", hook, "sh", str(root)], check=True)
    assert not marker.exists()
    assert str((root / "usr" / "local" / "bin" / "python").readlink()) == "/usr/bin/python3"
    assert "usr/local/bin" in imported.change
