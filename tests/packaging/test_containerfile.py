"""Tests of the image's recipe that need no builder."""

import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import Settings
from tests.packaging.conftest import MISSING, ROOT, TOOLS, tool
from tests.packaging.recipe import CONTAINERFILE, read_steps, variables
from tests.support import postgres
from tests.support.server import USERS, WITHOUT_MODELS, Server, running
from tests.test_lock import OF_GPUS, locked

INSTALL = ROOT / "deploy" / "container" / "install.sh"
INDEX = "https://torch.example/cpu"
FAKE = """\
#!/bin/sh
# Notes what it is called with, and makes nothing.
printf '%s\\n' "$*" >>"$CALLS"
"""


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    if not (TOOLS / "python").exists():
        pytest.skip(MISSING.kwargs["reason"])
    return read_steps()


@pytest.fixture(scope="module")
def last(steps: list[tuple[str, str]]) -> dict[str, str]:
    """Returns the last value of each instruction in the final stage."""
    begin = max(at for at, (name, _) in enumerate(steps) if name == "FROM")
    return dict(steps[begin:])


def copies(steps: list[tuple[str, str]]) -> Iterator[tuple[list[str], str]]:
    """Yields the sources and target of each copy from the repository."""
    for name, value in steps:
        if name == "COPY" and not value.startswith("--from"):
            *sources, target = value.split()
            yield sources, target


class TestSteps:
    def test_runs_as_nobody_in_particular(self, last: dict[str, str]) -> None:
        user, group = last["USER"].split(":")
        # An orchestrator cannot tell from a name that the user is not root.
        assert user.isdecimal() and group.isdecimal() and int(user) > 0 and int(group) > 0
        assert f"--uid {user}" in last["RUN"] and f"--gid {group}" in last["RUN"]

    def test_is_told_to_end(self, last: dict[str, str]) -> None:
        """The image stops by the signal that stops the server. No shell in between could withhold
        it.
        """
        assert last["STOPSIGNAL"] == "SIGTERM"
        assert json.loads(last["ENTRYPOINT"]) == ["tini", "--", "stoker"]
        assert " tini " in last["RUN"]
        assert json.loads(last["CMD"]) == ["serve"]

    def test_sets_what_are_settings(self, last: dict[str, str]) -> None:
        environment = variables(last["ENV"])
        fields = {
            name.removeprefix("STOKER_").lower(): value
            for name, value in environment.items()
            if name.startswith("STOKER_")
        }
        assert set(fields) <= set(Settings.model_fields)
        settings = Settings(_env_file=None, **fields)  # type: ignore[call-arg]
        assert str(settings.data_dir) in json.loads(last["VOLUME"])
        assert str(settings.port) == last["EXPOSE"]
        assert settings.host == "0.0.0.0"

    def test_has_no_tools(self, steps: list[tuple[str, str]], last: dict[str, str]) -> None:
        """The first stage installs. The last stage copies the installed files and has no
        installer.
        """
        assert sum(name == "FROM" for name, _ in steps) == 3
        assert "pip" not in last["RUN"]
        # The package is a layer of its own, because the libraries change seldom.
        libraries = steps.index(("COPY", "--from=libraries /opt/stoker /opt/stoker"))
        assert steps[libraries + 1] == ("COPY", "--from=package /package /opt/stoker")
        assert variables(last["ENV"])["PATH"].startswith("/opt/stoker/bin:")

    def test_any_user_of_group_0_writes_its_data(self, last: dict[str, str]) -> None:
        """OpenShift runs images as a random user of group 0."""
        assert "--group=root --mode=0770 /data" in last["RUN"]
        assert variables(last["ENV"])["HOME"] == last["WORKDIR"] == "/data"

    def test_gets_all_gpus(self, last: dict[str, str]) -> None:
        """NVIDIA's container runtime reads the variables."""
        environment = variables(last["ENV"])
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"

    def test_takes_what_is_there(self, steps: list[tuple[str, str]]) -> None:
        allowed = [
            line.removeprefix("!")
            for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.startswith("!")
        ]
        sources = [path for copied, _ in copies(steps) for path in copied]
        assert len(sources) > 5
        for source in sources:
            assert (ROOT / source).exists(), source
            # Otherwise .dockerignore would hide the file from the builder.
            assert any(Path(source).is_relative_to(path) for path in allowed), source
        unused = [
            path
            for path in allowed
            if not any(Path(source).is_relative_to(path) for source in sources)
        ]
        assert unused == []

    def test_python_is_one_that_we_support(self, steps: list[tuple[str, str]]) -> None:
        (version,) = [value for name, value in steps if name == "ARG" and "PYTHON" in value]
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        match = re.fullmatch(r"PYTHON=(\d+)\.(\d+)-slim-\w+", version)
        assert match, version
        least = project["requires-python"].removeprefix(">=").split(".")
        assert [int(part) for part in match.groups()] >= [int(part) for part in least]


@MISSING
def test_hadolint_finds_nothing() -> None:
    result = tool("hadolint", "--failure-threshold", "style", CONTAINERFILE)
    assert (result.returncode, result.stdout) == (0, "")


class TestInstall:
    """`install.sh` alone, with a fake `python` that records its calls."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for source in (INSTALL, ROOT / "requirements.lock"):
            shutil.copy(source, tmp_path)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").write_text(FAKE)
        (tmp_path / "bin" / "python").chmod(0o755)
        return tmp_path

    def run(
        self, folder: Path, *arguments: str, target: str | Path = "/venv"
    ) -> "subprocess.CompletedProcess[str]":
        env = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "CALLS": str(folder / "calls"),
        }
        return subprocess.run(
            ["sh", "install.sh", target, *arguments],
            cwd=folder,
            check=False,
            env=env,
            capture_output=True,
            text=True,
        )

    def test_without_cuda(self, folder: Path) -> None:
        """Installs everything in the lock except packages for GPUs, and torch from an index of
        builds without CUDA.
        """
        assert self.run(folder, "cpu", INDEX).returncode == 0
        pip = "-m pip --python /venv/bin/python"
        version = locked()["torch"]["version"]
        assert (folder / "calls").read_text().splitlines() == [
            "-m venv --without-pip /venv",
            f"{pip} install --no-deps --index-url {INDEX} torch=={version}",
            f"{pip} install --no-deps --require-hashes --requirement wanted.txt",
            f"{pip} check",
        ]
        requirements = (folder / "wanted.txt").read_text()
        names = re.findall(r"^([\w.-]+)==", requirements, re.MULTILINE)
        left_out = set(locked()) - set(names)
        assert left_out == {name for name in locked() if OF_GPUS.fullmatch(name)} | {"torch"}
        assert len(names) == len(set(names)) > 100
        digests = [match["digests"] for name, match in locked().items() if name in names]
        assert requirements.count("--hash=") == sum(digest.count("--hash=") for digest in digests)

    def test_without_cuda_from_the_index_of_other_packages(self, folder: Path) -> None:
        assert self.run(folder, "cpu", "").returncode == 0
        version = locked()["torch"]["version"]
        install = f"-m pip --python /venv/bin/python install --no-deps torch=={version}"
        assert install in (folder / "calls").read_text().splitlines()

    def test_from_an_index_with_cuda_only(self, folder: Path) -> None:
        """The step fails before it downloads the other packages."""
        module = folder / "venv" / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
        module.parent.mkdir(parents=True)
        module.write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
        result = self.run(folder, "cpu", "", target=folder / "venv")
        assert result.returncode == 2
        assert "Name one without CUDA with TORCH_INDEX." in result.stderr
        assert "--require-hashes" not in (folder / "calls").read_text()
        module.write_text("cuda: Optional[str] = None\n")
        assert self.run(folder, "cpu", "", target=folder / "venv").returncode == 0

    def test_with_cuda(self, folder: Path) -> None:
        assert self.run(folder, "cuda", INDEX).returncode == 0
        assert INDEX not in (folder / "calls").read_text()
        assert (folder / "wanted.txt").read_text() == (folder / "requirements.lock").read_text()

    def test_something_else(self, folder: Path) -> None:
        result = self.run(folder, "rocm", INDEX)
        assert (result.returncode, result.stderr) == (2, "TORCH is cpu or cuda, not 'rocm'.\n")


@MISSING
def test_the_wheel_has_all_that_the_repository_has(
    steps: list[tuple[str, str]], tmp_path: Path
) -> None:
    """The wheel is built only from the files that are copied before it."""
    tracked = subprocess.run(
        ["git", "ls-files", "stoker"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    source = tmp_path / "src"
    for sources, _ in copies(steps):
        for copied in sources:
            names = (
                [copied]
                if (ROOT / copied).is_file()
                else [x for x in tracked if x.startswith(copied)]
            )
            for name in names:
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, source / name)
    arguments = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    result = tool("pip", "wheel", *arguments, "--wheel-dir", tmp_path, source)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if name.startswith("stoker/")}
    # A template for new migrations, which users do not write.
    assert files == set(tracked) - {"stoker/store/migrations/script.py.mako"}


class TestCommands:
    @pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
    def test_entrypoint(self, arguments: list[str], last: dict[str, str]) -> None:
        """Runs in the users' environment."""
        program = Path(USERS).with_name(json.loads(last["ENTRYPOINT"])[-1])
        result = subprocess.run(
            [program, *arguments],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert result.returncode == 0, result.stderr
        assert "Usage: stoker" in result.stdout


class TestHealth:
    """The command of HEALTHCHECK and the file that it names."""

    @pytest.fixture
    def command(self, steps: list[tuple[str, str]], last: dict[str, str]) -> list[str]:
        value = last["HEALTHCHECK"]
        program, path = json.loads(value[value.index("CMD") + len("CMD") :])
        (source,) = [sources[0] for sources, target in copies(steps) if target == path]
        assert program == "python"
        return [os.path.realpath(USERS), "-I", str(ROOT / source)]

    def check(self, command: list[str], port: Any, **env: str) -> tuple[int, str]:
        environment = {"STOKER_HOST": "0.0.0.0", "STOKER_PORT": str(port), **env}
        # The check must call the server without a proxy.
        environment |= {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        result = subprocess.run(
            command, env=environment, capture_output=True, check=False, text=True, timeout=30
        )
        return result.returncode, result.stderr

    @pytest.mark.parametrize("hosts", ['["127.0.0.1"]', '["*.inner.example"]'])
    def test_of_a_server_that_works(self, command: list[str], hosts: str, gateway: Server) -> None:
        """The check succeeds for a server that answers to some host names only."""
        port = gateway.base_url.rpartition(":")[2]
        assert self.check(command, port, STOKER_ALLOWED_HOSTS=hosts) == (0, "")

    def test_of_none(self, command: list[str], tmp_path: Path) -> None:
        with running(tmp_path / "data", **WITHOUT_MODELS) as server:
            port = server.base_url.rpartition(":")[2]
            assert self.check(command, port) == (0, "")
            assert server.stop() == 0
        code, why = self.check(command, port)
        assert (code, "no answer from" in why) == (1, True)

    def test_of_a_server_that_fails(self, command: list[str], tmp_path: Path) -> None:
        """The check fails while the database is down. The page for the chart's probe needs no
        database.
        """
        with postgres.cluster() as cluster:
            env = {"STOKER_DATABASE_URL": cluster.url, **WITHOUT_MODELS}
            with running(tmp_path / "data", **env) as server, server.client() as client:
                port = server.base_url.rpartition(":")[2]
                assert self.check(command, port) == (0, "")
                cluster.stop()
                code, why = self.check(command, port)
                assert code == 1
                assert "503" in why and "The database does not answer." in why
                assert client.get("/docs").status_code == 200
                assert client.get("/ready").status_code == 503
                cluster.start()
