"""`stoker doctor`: checks this machine and the server."""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stoker.base.extras import install_command
from stoker.cli import output, server_health
from stoker.cli.context import context
from stoker.cli.output import AsJson
from stoker.cli.settings import HINT, read_settings
from stoker.cli.verdicts import DoctorCheck, DoctorVerdict
from stoker.client.errors import WrongUseError

MIN_PYTHON = (3, 11)
GB = 10**9
LOW_MEMORY_BYTES = 4 * GB
LOW_DISK_BYTES = 10 * GB
FULL_DISK_BYTES = GB
IMPORT_TIMEOUT_S = 120
PROBE_TIMEOUT_S = 10
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

FORK = """\
import os, sys
child = os.fork()
if child == 0:
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""
PROBE = "from stoker.sandbox import probe; probe.main()"
WALLS = {
    "files": "Run Linux 5.13 or later with Landlock among its security modules (boot with lsm=…).",
    "network": "Allow user namespaces, or Linux 6.7 or later with Landlock.",
    "system calls": "Allow seccomp filters.",
    "sockets": "Allow seccomp filters.",
    "signals": "Run Linux 6.12 or later with Landlock, or allow seccomp filters.",
    "processes": "Allow user namespaces, or serve as root with STOKER_REPLICA_UIDS.",
    "capabilities": "Serve as another user.",
    "user": "Serve as another user than root, or name users that exist in STOKER_REPLICA_UIDS.",
}
"""Maps a sandbox layer of a replica to the way to enable it."""

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    ctx: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Data folder of the server, if it was started with --data-dir."),
    ] = None,
    gpu: Annotated[
        bool,
        typer.Option(
            help="Also check GPUs: driver, sandbox, torch, memory. Default: if there is a driver."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the server. Exits with 1 if a check fails."""
    if data_dir is not None:
        os.environ["STOKER_DATA_DIR"] = str(data_dir)
    checks: list[DoctorCheck] = []
    with output.spinner("Checking …"):
        for check in MACHINE:
            result = check()
            checks.extend([result] if isinstance(result, DoctorCheck) else result)
        checks.extend(_gpus(is_asked=gpu))
        checks.extend(server_health.checks(context(ctx)))
    failed = any(check.status is DoctorVerdict.FAIL for check in checks)
    if as_json:
        output.print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        hints = {check.name: check.hint.split("\n") for check in checks}
        rows = [[check.status, check.name, check.found, hints[check.name][0]] for check in checks]
        output.print_table(["", "check", "found", "hint"], rows, STYLES)
        # Whole lines can be copied.
        for name, (_, *lines) in hints.items():
            if lines:
                output.write("\n".join([f"\n{name}:", *lines, ""]))
    if failed:
        raise typer.Exit(1)


def _python() -> DoctorCheck:
    version = platform.python_version()
    if sys.version_info >= MIN_PYTHON:
        return DoctorCheck("Python", DoctorVerdict.OK, version)
    return DoctorCheck("Python", DoctorVerdict.FAIL, version, "Install Python 3.11 or later.")


def _engines() -> list[DoctorCheck]:
    from stoker.models.engines.catalogue import ENGINES

    return [
        _engine(engine.name, engine.title, engine.probe)
        for engine in ENGINES.values()
        if engine.probe
    ]


def _engine(name: str, title: str, program: str) -> DoctorCheck:
    probe = _python_probe(program, IMPORT_TIMEOUT_S)
    if probe is not None and probe.returncode == 0:
        return DoctorCheck(title, DoctorVerdict.OK, probe.stdout.strip())
    lines = probe.stderr.strip().splitlines() if probe else ["import timed out"]
    hint = f"The {name} engine needs this package. Install stoker with its dependencies."
    return DoctorCheck(title, DoctorVerdict.FAIL, lines[-1] if lines else "import failed", hint)


def _cores() -> DoctorCheck:
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if count >= 2:
        return DoctorCheck("CPU cores", DoctorVerdict.OK, str(count))
    return DoctorCheck(
        "CPU cores", DoctorVerdict.WARN, str(count), "The server and a model share one core."
    )


def _memory() -> DoctorCheck:
    import psutil

    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    if (limit := _cgroup_limit()) is not None and limit < total:
        available, total = min(available, limit), limit
    message = f"{output.size(available)} available of {output.size(total)}"
    if available >= LOW_MEMORY_BYTES:
        return DoctorCheck("memory", DoctorVerdict.OK, message)
    return DoctorCheck("memory", DoctorVerdict.WARN, message, "Only small models will fit.")


def _cgroup_limit() -> int | None:
    try:
        text = CGROUP_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _disk() -> DoctorCheck:
    try:
        folder = read_settings().data_dir.resolve()
    except WrongUseError as error:
        return DoctorCheck("settings", DoctorVerdict.FAIL, error.message, HINT)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    message = f"{output.size(free)} free for {folder}"
    if not os.access(existing, os.W_OK):
        return DoctorCheck(
            "data folder", DoctorVerdict.FAIL, f"{existing} is not writable", "Set STOKER_DATA_DIR."
        )
    if free < FULL_DISK_BYTES:
        return DoctorCheck(
            "data folder", DoctorVerdict.FAIL, message, "Free disk space, or set STOKER_DATA_DIR."
        )
    if free < LOW_DISK_BYTES:
        return DoctorCheck("data folder", DoctorVerdict.WARN, message, "Large models will not fit.")
    return DoctorCheck("data folder", DoctorVerdict.OK, message)


def _bucket() -> list[DoctorCheck]:
    """Checks the operations that a bucket must support. Returns nothing for a folder."""
    try:
        settings = read_settings()
    except WrongUseError:
        # `_disk` reports it.
        return []
    from stoker.cli import bucket_health

    return bucket_health.checks(settings)


def _fleet() -> list[DoctorCheck]:
    """Checks what machines of a fleet share. Returns nothing without PostgreSQL."""
    if not server_health.shares_database():
        return []
    from stoker.cli import fleet_health

    return asyncio.run(fleet_health.checks(read_settings()))


def _fork() -> DoctorCheck:
    probe = _python_probe(FORK, PROBE_TIMEOUT_S)
    if probe is not None and probe.returncode == 0:
        return DoctorCheck("fork", DoctorVerdict.OK, "works")
    return DoctorCheck(
        "fork", DoctorVerdict.FAIL, "does not work", "Replicas are forked: use Linux or macOS."
    )


def _walls() -> list[DoctorCheck]:
    """Applies the replica sandbox to a child process and tests each layer there."""
    try:
        users = read_settings().replica_users
    except WrongUseError as error:
        return [DoctorCheck("settings", DoctorVerdict.FAIL, error.message, HINT)]
    user = str(users[0]) if users and os.geteuid() == 0 else ""
    probe = _python_probe(PROBE, PROBE_TIMEOUT_S, user)
    layers: dict[str, str | None] = {}
    if probe is not None and probe.returncode == 0:
        layers = json.loads(probe.stdout)
    if not layers:
        hint = "Replicas may fail to start, or run without a sandbox. See docs/security.md."
        return [DoctorCheck("walls", DoctorVerdict.WARN, "could not be tested", hint)]
    return [_wall(name, missing) for name, missing in layers.items()]


def _wall(name: str, missing: str | None) -> DoctorCheck:
    if missing is None:
        return DoctorCheck(f"wall: {name}", DoctorVerdict.OK, "active")
    return DoctorCheck(f"wall: {name}", DoctorVerdict.WARN, f"missing: {missing}", WALLS[name])


def _gpus(*, is_asked: bool) -> list[DoctorCheck]:
    from stoker.cli import gpu_health

    return gpu_health.checks() if is_asked or gpu_health.is_expected() else []


def _priorities() -> DoctorCheck:
    from stoker.sandbox.priority import has_groups, may_set_nice

    name = "cores by account"
    if may_set_nice():
        return DoctorCheck(name, DoctorVerdict.OK, "shared fairly between accounts")
    hint = "Give the server CAP_SYS_NICE, or a nice limit of 20 (ulimit -e 20)."
    if has_groups():
        message = "shared fairly between accounts, except in a container or service"
        return DoctorCheck(name, DoctorVerdict.OK, message, hint)
    return DoctorCheck(
        name, DoctorVerdict.WARN, "shared by the kernel per thread, not per account", hint
    )


_OF_SETTINGS = {
    "compression": ("nncf",),
    "otel": ("opentelemetry-sdk",),
    "postgres": ("asyncpg",),
    "ray": ("ray",),
}
"""Maps an extra that settings or commands need to its packages, by their index names."""


def _extras() -> DoctorCheck:
    from stoker.inspection.packages import is_installed
    from stoker.inspection.requirements import EXTRAS

    missing = [
        name
        for name, packages in sorted({**EXTRAS, **_OF_SETTINGS}.items())
        if not all(is_installed(package) for package in packages)
    ]
    if not missing:
        return DoctorCheck("extras", DoctorVerdict.OK, "all installed")
    commands = "\n".join(install_command(name) for name in missing)
    hint = f"Some models and settings need an extra. Install the one that you need:\n{commands}"
    return DoctorCheck("extras", DoctorVerdict.OK, f"not installed: {', '.join(missing)}", hint)


MACHINE: tuple[Callable[[], DoctorCheck | list[DoctorCheck]], ...] = (
    _python,
    _engines,
    _cores,
    _memory,
    _disk,
    _bucket,
    _fleet,
    _fork,
    _walls,
    _priorities,
    _extras,
)


def _python_probe(
    code: str, timeout_s: float, *arguments: str
) -> subprocess.CompletedProcess[str] | None:
    """Runs code in a separate Python process. Returns None if it times out."""
    try:
        return subprocess.run(  # noqa: S603 - our own code, no input of others
            [sys.executable, "-P", "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
