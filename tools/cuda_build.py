"""Installs Stoker with a build of torch for CUDA into a new environment. It needs no GPU.

`python -m tools.cuda_build FOLDER`, or `make install-cuda-build`. It downloads 3 GB. torch is newer
than Stoker's own, because torchvision must fit it.
"""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

from tools.marks import ROOT

TORCH = ("torch==2.14.1", "torchvision==0.29.1")
_PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-compile")


def main(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    _install(folder, *TORCH)
    constraints = folder / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    # torch needs its own release of setuptools.
    constraints.write_text("\n".join(_without(lines, "torch", "setuptools")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = _without(project["dependencies"], "torch")
    _install(folder, "--constraint", str(constraints), *requirements)
    _install(folder, "--no-deps", "--editable", str(ROOT))


def _without(requirements: Sequence[str], *names: str) -> list[str]:
    return [line for line in requirements if not line.startswith(names)]


def _install(folder: Path, *arguments: str) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", *_PIP, *arguments]
    subprocess.run(command, check=True, cwd=ROOT)  # noqa: S603 — pip with our own arguments


if __name__ == "__main__":
    main(Path(sys.argv[1]))
