"""Runs Stoker's image: `BuiltImage` by a container engine, `ImageOfSteps` without one."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.recipe import Stage, read_stages, variables
from tests.support.server import INSTALLED

Completed = subprocess.CompletedProcess[str]
_LIBRARIES = "/opt/stoker"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STEP_TIMEOUT_S = 240
_MOUNT = f"""
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$STAGE/upper,workdir=$STAGE/work" "$STAGE/root"
mkdir -p "$STAGE/root{_LIBRARIES}"
mount -t overlay overlay \
  -o "lowerdir=$INSTALLED,upperdir=$STAGE/libraries,workdir=$STAGE/libraries-work" \
  "$STAGE/root{_LIBRARIES}"
mount --rbind /dev "$STAGE/root/dev"
mount --rbind /sys "$STAGE/root/sys"
"""
_BUILD = """
mount --rbind /proc "$STAGE/root/proc"
exec chroot "$STAGE/root" env -C "$WORKDIR" /bin/sh -c "$STEP"
"""
_RUN = f"""
mount -t proc proc "$STAGE/root/proc"
mount --bind "$DATA" "$STAGE/root/data"
[ "$DATA_MODE" = rw ] || mount -o remount,bind,ro "$STAGE/root/data"
[ "$TMP" = no ] || mount -t tmpfs tmpfs "$STAGE/root/tmp"
mount -o remount,bind,ro "$STAGE/root{_LIBRARIES}"
mount -o remount,bind,ro "$STAGE/root"
exec chroot "$STAGE/root" setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --clear-groups \
  --bounding-set=-all --inh-caps=-all --no-new-privs env -i -C "$WORKDIR" "$@"
"""


class Container:
    """A process in the image. Its first process is tini, whose exit code is the container's."""

    def __init__(
        self,
        process: "subprocess.Popen[str]",
        port: int,
        within: Callable[[], list[str]],
        stop: Callable[[], object],
    ) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._within = within
        self._stop = stop

    def execute(self, *command: str) -> Completed:
        """Runs a command in the container, as `podman exec` does."""
        return subprocess.run(
            [*self._within(), *command], capture_output=True, text=True, check=False, timeout=60
        )

    def ended(self, timeout_s: float = 60) -> tuple[int, str]:
        """Waits for the end. Returns exit code and output."""
        output, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output

    def stop(self) -> tuple[int, str]:
        """Sends SIGTERM to the first process. Returns exit code and output."""
        if self.process.poll() is None:
            self._stop()
        return self.ended()

    def kill(self) -> None:
        if self.process.poll() is None:
            self._stop()
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class BuiltImage:
    """An image in the store of an engine, such as Podman."""

    def __init__(self, engine: str, name: str) -> None:
        self._engine = engine
        self._name = name
        self.health_command = read_stages()[-1].health_command

    def start(
        self,
        *arguments: str,
        data: Path,
        user: str = "10001:10001",
        is_data_writable: bool = True,
        has_tmp: bool = True,
    ) -> Container:
        """Starts a container with a read-only root, without capabilities."""
        port, name = _free_port(), f"stoker-{uuid.uuid4().hex[:12]}"
        tmp = ["--tmpfs", "/tmp"] if has_tmp else []
        # Podman would mount its own at /tmp.
        tmp += ["--read-only-tmpfs=false"] if Path(self._engine).name == "podman" else []
        process = subprocess.Popen(
            [
                *(self._engine, "run", "--rm", "--name", name, "--network", "host"),
                "--no-healthcheck",
                *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
                *("--user", user, "--volume", f"{data}:/data:{'rw' if is_data_writable else 'ro'}"),
                *(*tmp, "--env", f"STOKER_PORT={port}", self._name, *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        def stop() -> None:
            stopping = [self._engine, "stop", "--time", "60", name]
            subprocess.run(stopping, check=False, capture_output=True, timeout=90)

        return Container(process, port, lambda: [self._engine, "exec", name], stop)


class ImageOfSteps:
    """The result of the Containerfile's instructions on the files of this machine.

    Each stage is an overlay of this machine's root, in a mount namespace of its own. All
    instructions run as they are, except `install.sh`: .venv-install takes the place of the
    libraries that this step would download. So the image lacks the extras.

    Raises `pytest.skip.Exception` if this machine lacks the rights or programs.
    """

    def __init__(self, folder: Path) -> None:
        _check_machine()
        self._folder = folder
        self._interpreter = Path(os.path.realpath(INSTALLED))
        stages = read_stages()
        for stage in stages:
            self._build(stage)
        self._last = stages[-1]
        self._environment = self._variables(self._last)
        self.health_command = self._last.health_command

    def start(
        self,
        *arguments: str,
        data: Path,
        user: str = "10001:10001",
        is_data_writable: bool = True,
        has_tmp: bool = True,
    ) -> Container:
        """Starts a process with a read-only root, without capabilities."""
        port, (user_id, group_id) = _free_port(), user.split(":")
        last = self._last.last
        environment = {**self._environment, "STOKER_PORT": str(port)}
        command = [*json.loads(last["ENTRYPOINT"]), *(arguments or json.loads(last["CMD"]))]
        assignments = [f"{name}={value}" for name, value in environment.items()]
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *("sh", "-c", _MOUNT + _RUN, "sh", *assignments, *command),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                **self._places(self._last),
                "WORKDIR": last["WORKDIR"],
                "DATA": str(data),
                "DATA_MODE": "rw" if is_data_writable else "ro",
                "TMP": "yes" if has_tmp else "no",
                "USER_ID": user_id,
                "GROUP_ID": group_id,
            },
        )

        parent = psutil.Process(process.pid)
        wait_until(lambda: bool(parent.children()) or process.poll() is not None)

        def first() -> int:
            (child,) = parent.children()
            return child.pid

        def within() -> list[str]:
            entering = ["nsenter", "--target", str(first()), "--mount", "--pid", "--root", "--wd"]
            owner = ["setpriv", "--reuid", user_id, "--regid", group_id, "--clear-groups"]
            return [*entering, *owner, "env", "-i", *assignments]

        return Container(process, port, within, lambda: os.kill(first(), signal.SIGTERM))

    def _stage_folder(self, name: str) -> Path:
        return self._folder / (name or "last")

    def _places(self, stage: Stage) -> dict[str, str]:
        return {
            "STAGE": str(self._stage_folder(stage.name)),
            "INSTALLED": str(INSTALLED.parents[1]),
        }

    def _variables(self, stage: Stage) -> dict[str, str]:
        """Returns the values of all `ENV` instructions."""
        found = {"PATH": _PATH}
        for name, value in stage.steps:
            if name == "ENV":
                found |= {
                    key: text.replace("$PATH", found["PATH"])
                    for key, text in variables(value).items()
                }
        return found

    def _build(self, stage: Stage) -> None:
        folder = self._stage_folder(stage.name)
        before = self._stage_folder(stage.base)
        if before.exists():
            shutil.copytree(before, folder, symlinks=True)
        else:
            for name in ("upper", "work", "root", "libraries", "libraries-work"):
                (folder / name).mkdir(parents=True)
            self._provide_python(folder)
        environment, workdir = {"PATH": _PATH}, "/"
        for name, value in stage.steps:
            if name == "ARG":
                key, _, default = value.partition("=")
                environment |= {key: default} if default else {}
            elif name == "ENV":
                environment |= variables(value)
                environment["PATH"] = self._variables(stage)["PATH"]
            elif name == "WORKDIR":
                workdir = value
                (folder / "upper" / value.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                self._copy(folder, value, workdir)
            elif name == "RUN" and "install.sh" not in value:
                self._run(stage, value, workdir, environment)

    def _provide_python(self, folder: Path) -> None:
        """Provides `python` as the base image does, and lets every user run it."""
        programs = folder / "upper" / "usr" / "local" / "bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(self._interpreter)
        for parent in list(self._interpreter.parents)[-2::-1]:
            copied = folder / "upper" / str(parent).lstrip("/")
            copied.mkdir(exist_ok=True)
            copied.chmod(parent.stat().st_mode | 0o011)

    def _copy(self, folder: Path, value: str, workdir: str) -> None:
        *sources, target = value.split()
        origin = ROOT
        if sources[0].startswith("--from="):
            origin = self._stage_folder(sources.pop(0).removeprefix("--from=")) / "upper"
            if sources == [_LIBRARIES]:
                # Mounted in all stages.
                return
        path = os.path.normpath(os.path.join(workdir, target))  # noqa: PTH118 - inside the image
        placed = folder / "upper" / path.lstrip("/")
        if path == _LIBRARIES:
            placed = folder / "libraries"
        for source in sources:
            copied = origin / source.lstrip("/")
            if copied.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if origin == ROOT else None
                shutil.copytree(copied, placed, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                into = placed / copied.name if target.endswith("/") else placed
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(copied, into)

    def _run(self, stage: Stage, step: str, workdir: str, environment: dict[str, str]) -> None:
        # The configuration of pip and of a proxy is this machine's.
        result = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _MOUNT + _BUILD],
            env={
                **os.environ,
                **environment,
                **self._places(stage),
                "WORKDIR": workdir,
                "STEP": step,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=_STEP_TIMEOUT_S,
        )
        assert result.returncode == 0, f"{step}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"


def _check_machine() -> None:
    """Skips the test unless this process may mount overlays and has the programs of the steps."""
    if os.geteuid() != 0:
        pytest.skip("the steps of the Containerfile run as root only")
    for program in ("unshare", "nsenter", "setpriv", "apt-get"):
        if shutil.which(program) is None:
            pytest.skip(f"the steps of the Containerfile need {program}")
    if not INSTALLED.exists():
        pytest.skip(f"{INSTALLED} was not found: make install-alone")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("upper", "work", "root"):
            (Path(folder) / name).mkdir()
        options = f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work"
        mount = f"mount -t overlay overlay -o {options} {folder}/root"
        tried = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True, check=False
        )
    if tried.returncode:
        pytest.skip(f"this machine mounts no overlay of its root: {tried.stderr.strip()}")


def wait_until(is_true: Callable[[], bool], timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.2)
