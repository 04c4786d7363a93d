"""Builds the wheel and the source distribution: `python -m tools.distributions FOLDER`.

Only tracked files are packed, so that a checkout's other files stay out of a release. Runs in the
environment of `make install-packaging`, which has hatchling.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = "constraints.txt"
"""Tested releases of all libraries. Copied next to the wheel, for `pip install -c`."""
MB = 1_000_000


@dataclass(frozen=True)
class Distributions:
    wheel: Path
    sdist: Path


def copy_tracked(checkout: Path, target: Path) -> None:
    """Copies the tracked files of a checkout, with uncommitted changes."""
    for name in _git(checkout, "ls-files", "-z").split("\0"):
        # A file that was deleted and not committed is still listed.
        if name and (checkout / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkout / name, target / name)


def build(checkout: Path, folder: Path, python: Path | str = sys.executable) -> Distributions:
    """Builds both distributions of a checkout into a folder.

    Args:
        python: interpreter with hatchling.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy_tracked(checkout, Path(temporary))
        run_hatchling(Path(temporary), folder, python)
        shutil.copy(Path(temporary) / PINS, folder)
    version = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]
    name = f"stoker-{version}"
    return Distributions(folder / f"{name}-py3-none-any.whl", folder / f"{name}.tar.gz")


def run_hatchling(sources: Path, folder: Path, python: Path | str, *options: str) -> None:
    """Builds the distributions of a folder of sources into another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(  # noqa: S603 - our own command
        [str(python), "-m", "hatchling", "build", "-d", str(folder.resolve()), *options],
        cwd=sources,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel and the source distribution.")
    parser.add_argument("folder", type=Path, help="folder for both")
    folder = parser.parse_args().folder
    if changed := _git(ROOT, "status", "--porcelain", "--untracked-files=no").splitlines():
        sys.stderr.write(f"Warning: {len(changed)} tracked files have uncommitted changes.\n")
    built = build(ROOT, folder)
    for path in (built.wheel, built.sdist):
        sys.stdout.write(f"{path} ({path.stat().st_size / MB:.1f} MB)\n")


if __name__ == "__main__":
    main()
