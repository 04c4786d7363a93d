"""The blocks that run the tests or the benchmarks: make knows their targets and variables, and the
programs that it would start accept their arguments.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from _pytest.mark.expression import Expression

from bench.gpu import __main__ as bench_gpu
from tests.support.doc_blocks import ROOT
from tests.support.doc_runs import block_of
from tests.support.recording import recorded
from tests.support.tiers import SMOKE, TIERS
from tools.soak import __main__ as soak

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
PYTHON = [".venv/bin/python", "-m"]


def recipe(call: list[str]) -> list[str]:
    """Returns the words of the last command that a call of make would run."""
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *call[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout.splitlines()[-1])


def accepted(parse: Callable[[], Any], words: list[str]) -> Any:
    """Returns what a program reads from its arguments."""
    with mock.patch.object(sys, "argv", ["program", *words]):
        return parse()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_development(page: str, tmp_path: Path) -> None:
    block = block_of(page, "make test ").text.replace(".venv/bin/pytest", "pytest")
    for call in recorded(tmp_path, block, "make", "pytest"):
        match call:
            case ["make", "test"]:
                *everything, option, expression = recipe(call)
                assert everything == recipe(["make", "test-all"]) and option == "-m"
                assert {*expression.split()} - {"or"} <= {*TIERS, SMOKE}
                assert Expression.compile(expression).evaluate(lambda name, **_: name == SMOKE)
            case ["make", "test-all"]:
                assert "release" not in " ".join(recipe(call))
            case ["make", "test-ci" | "check"]:
                assert f"make {call[1]}\n" in (ROOT / ".ci" / "run").read_text()
            case ["make", "soak"]:
                *program, module = recipe(call)[:3]
                assert (program, module) == (PYTHON, "tools.soak")
                assert accepted(soak._arguments, recipe(call)[3:]).minutes == 30
                assert "30 minutes of load and faults; MINUTES=5 for less" in block
                less = recipe([*call, "MINUTES=5"])
                assert accepted(soak._arguments, less[3:]).minutes == 5
            case ["make", "bench"]:
                # Without names, all benchmarks run.
                assert recipe(call) == [*PYTHON, "bench"]
                assert recipe(["make", "bench-peers"])[:3] == [*PYTHON, "bench.peers.make"]
            case ["pytest", folder, "-q", "-k", word]:
                assert [*(ROOT / folder).glob(f"test_*{word}*.py")]
            case _:
                raise AssertionError(f"no check for {call}")


def test_bench_gpu(tmp_path: Path) -> None:
    calls = recorded(tmp_path, block_of("docs/gpu.md", "make bench-gpu").text, "make")
    runs: list[Any] = []
    for call in calls:
        *program, module = recipe(call)[:3]
        assert (program, module) == (PYTHON, "bench.gpu")
        runs.append(accepted(bench_gpu._arguments, recipe(call)[3:]))
    everything, some, tiny = runs
    assert everything.rows == [*bench_gpu.GROUPS] and not everything.without_gpu
    assert everything.out.relative_to(ROOT) == Path("bench/results/gpu")
    assert everything.seconds == 7 * 60
    assert (some.rows, some.out, some.without_gpu) == (["bert", "chat"], Path("result"), False)
    assert tiny.without_gpu
