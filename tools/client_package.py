"""Builds the distribution `stoker-client`: stoker/client as the package `stoker_client`.

It needs hatchling, which `make dist-client` has.
"""

import argparse
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from tools.distributions import run_hatchling

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "stoker" / "client"
README = "README.md"

PROJECT = """\
[build-system]
requires = ["hatchling>=1.27,<2"]
build-backend = "hatchling.build"

[project]
name = "stoker-client"
version = "{version}"
description = "Typed client of Stoker, a self-hosted model server."
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = {dependencies}
classifiers = ["Typing :: Typed"]

[tool.hatch.build.targets.wheel]
packages = ["stoker_client"]
"""
DEPENDENCIES = ("httpx", "msgspec")


def write_project(folder: Path) -> None:
    """Writes the project of the distribution into an empty folder."""
    ignored = shutil.ignore_patterns("__pycache__", README)
    shutil.copytree(SOURCE, folder / "stoker_client", ignore=ignored)
    shutil.copy(SOURCE / README, folder / README)
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # The same ranges as the server's.
    needed = [d for d in project["dependencies"] if d.partition(">")[0] in DEPENDENCIES]
    (folder / "pyproject.toml").write_text(
        PROJECT.format(version=project["version"], dependencies=str(needed).replace("'", '"'))
    )


def build(target: Path) -> None:
    """Builds a wheel and a source distribution into a folder."""
    with tempfile.TemporaryDirectory() as name:
        write_project(Path(name))
        run_hatchling(Path(name), target, sys.executable)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files")
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
