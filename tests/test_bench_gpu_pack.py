"""The blocks that pack the GPU benchmark for a machine without a network, and start it there.

pip and the creation of the environment are recorded. Everything else in the blocks runs.
"""

import ast
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pip._internal.commands import create_command
from pip._internal.utils._log import VerboseLogger

from bench.gpu.__main__ import NO_GPU
from tests.support.doc_blocks import ROOT
from tests.support.doc_runs import block_of
from tests.support.recording import recorded
from tests.support.server import USERS

WHEEL = "stoker-0.1.0-py3-none-any.whl"
CONFIGURED = ("-c", "user.name=a", "-c", "user.email=a@example.com")
PYTHON = f"""#!/bin/sh
# Runs the users' Python, which finds no nvidia-smi.
PATH=/nowhere exec {USERS} "$@"
"""


@pytest.fixture(autouse=True)
def pips_loggers() -> Iterator[None]:
    """Makes pip's own loggers, although a library may have replaced their class."""
    before = logging.getLoggerClass()
    logging.setLoggerClass(VerboseLogger)
    yield
    logging.setLoggerClass(before)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns a repository with what the blocks copy, and with what they must not copy."""
    folder = tmp_path / "checkout"
    leftovers = shutil.ignore_patterns("__pycache__", ".cache", "results")
    shutil.copytree(ROOT / "bench", folder / "bench", ignore=leftovers)
    for name in (".cache", "results"):
        (folder / "bench" / name).mkdir()
        (folder / "bench" / name / "large").touch()
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=leftovers)
    (folder / "pack" / "wheels").mkdir(parents=True)
    (folder / "pack" / "wheels" / WHEEL).touch()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    commit = ["git", *CONFIGURED, "commit", "--quiet", "--allow-empty", "--message", "One"]
    subprocess.run(commit, cwd=folder, check=True)
    return folder


def imported(folder: Path) -> Iterator[str]:
    """Yields the project's modules that the programs of a folder import."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in ("bench", "tools"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield f"{node.module}"
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def test_blocks(checkout: Path, tmp_path: Path) -> None:
    text = block_of("docs/gpu.md", "mkdir -p pack/wheels").text
    wheel, download = recorded(checkout, text, "pip")
    options, names = create_command("wheel").parse_args(wheel[2:])
    assert (wheel[1], names, options.ignore_dependencies) == ("wheel", ["."], True)
    assert options.wheel_dir.endswith("pack/wheels")
    options, names = create_command("download").parse_args(download[2:])
    assert (download[1], options.requirements, names) == ("download", ["PACKAGES"], [])
    assert options.download_dir == "pack/wheels" and options.python_version == (3, 12)
    assert len(options.platforms) == 2 and options.format_control.only_binary == {":all:"}

    srv = tmp_path / "srv"
    (srv / "python" / "bin").mkdir(parents=True)
    (srv / "python" / "bin" / "pip").symlink_to(srv / ".recorders" / "pip")
    (srv / "python" / "bin" / "python").write_text(PYTHON)
    (srv / "python" / "bin" / "python").chmod(0o755)
    text = block_of("docs/gpu.md", "tar -xf pack.tar").text
    text = text.replace("/srv", str(srv)).replace("pack.tar", f"{checkout}/pack.tar")
    prepare, _, run = text.rstrip().rpartition("\n")
    environment, install = recorded(srv, prepare, "python3", "pip")
    assert environment[1:] == ["-m", "venv", "--system-site-packages", f"{srv}/python"]
    options, names = create_command("install").parse_args(install[2:])
    assert (install[1], names) == ("install", [f"wheels/{WHEEL}"])
    assert options.no_index and options.ignore_dependencies

    pack = srv / "pack"
    assert len((pack / "COMMIT").read_text().strip()) == 40
    assert not (pack / "bench" / "results").exists() and not (pack / "bench" / ".cache").exists()
    modules = {name for name in imported(pack) if name.startswith(("bench", "tools", "tests"))}
    places = [pack / name.replace(".", "/") for name in modules]
    assert len(places) > 20
    assert [
        str(place)
        for place in places
        if not place.with_suffix(".py").exists() and not (place / "__init__.py").exists()
    ] == []
    done = subprocess.run(
        ["bash", "-euc", run], cwd=pack, check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr.strip()) == (1, NO_GPU)
