"""Runs a shell block with recorders in place of the programs that need another machine.

All other commands of the block run, so the shell itself expands what the recorders get.
"""

import os
import subprocess
from pathlib import Path

_RECORDER = r"""#!/bin/sh
# Records its name and its arguments, and does nothing else.
printf '%s\037' "${0##*/}" "$@" >>"$CALLS"
printf '\036' >>"$CALLS"
"""
_TIMEOUT_S = 60


def recorded(folder: Path, script: str, *programs: str, **env: str) -> list[list[str]]:
    """Runs a script that must succeed, in a folder. Returns the calls of the programs.

    Args:
        programs: names of the programs that are only recorded.
        env: additional environment variables.
    """
    recorders, calls = folder / ".recorders", folder / ".recorders" / "calls"
    recorders.mkdir(exist_ok=True)
    calls.write_text("")
    for program in programs:
        (recorders / program).write_text(_RECORDER)
        (recorders / program).chmod(0o755)
    run_script(folder, script, recorders, CALLS=str(calls), **env)
    return [call.split("\037")[:-1] for call in calls.read_text().split("\036")[:-1]]


def run_script(
    folder: Path, script: str, programs: Path, *, timeout_s: float = _TIMEOUT_S, **env: str
) -> str:
    """Runs a script that must succeed, in a folder. Returns its output.

    Args:
        programs: folder with programs that replace others of the same name.
        env: additional environment variables.
    """
    variables = {**os.environ, **env}
    variables["PATH"] = f"{programs}:{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=variables,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout
