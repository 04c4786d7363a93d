"""`stoker doctor --gpu`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.cli import doctor, gpu_health
from stoker.replica.gpu_checks import all_walls, is_built_for
from stoker.sandbox import Opening, Wall, gpu_places
from stoker.wire.gpu_walls import GpuWalls
from tests.cli.support import Cli
from tests.replica.test_cuda_guard import PYTHON, needs_cuda_build
from tests.support import driver
from tests.support.doc_runs import block_of

ROOT = Path(__file__).parents[2]
no_gpu = pytest.mark.skipif(bool(gpu_places.gpus()), reason="this machine has a GPU")
no_compiler = pytest.mark.skipif(
    not driver.COMPILER, reason="no compiler for the stand-in is installed"
)
SUPPORTED = ["sm_75", "sm_80", "sm_90a", "compute_90"]


@pytest.fixture
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MACHINE", ())


@pytest.mark.usefixtures("no_machine")
class TestCommand:
    @no_gpu
    def test_without_a_gpu(self, cli: Cli) -> None:
        """The page's command says what it did not check, and succeeds."""
        program, *words = block_of("docs/gpu.md", ".venv/bin/stoker doctor --gpu").text.split()
        assert program == ".venv/bin/stoker"
        checks = {check["name"]: check for check in cli.json(*words)["checks"]}
        assert checks["GPU"]["status"] == "warn"
        assert checks["GPU"]["found"] == "no driver lists a device"
        assert "--gpus all" in checks["GPU"]["hint"]
        not_checked = checks["GPU: not checked"]
        assert not_checked["status"] == "warn"
        for name in ("fork", "wall", "multiplication", "memory", "checkpoint", "MPS"):
            assert name in not_checked["found"]
        assert "GPU: torch" in checks

    @no_gpu
    def test_without_a_gpu_it_is_not_checked_unless_asked(self, cli: Cli) -> None:
        assert not [
            check for check in cli.json("doctor")["checks"] if check["name"].startswith("GPU")
        ]

    def test_with_a_driver_it_is_checked_without_asking(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gpu_places, "has_program", lambda: True)
        monkeypatch.setattr(gpu_health, "checks", lambda: [])
        assert gpu_health.is_expected()
        assert cli.json("doctor")["ok"]

    @pytest.mark.parametrize(
        ("code", "found"),
        [
            ("print('{}'); import time; time.sleep(60)", "no result within 2 s"),
            ("import sys; print('{}'); sys.exit('out of luck')", "out of luck"),
        ],
    )
    def test_results_up_to_a_hang_or_fault_are_shown(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, found: str
    ) -> None:
        line = json.dumps({"name": "GPU", "status": "ok", "found": "one"})
        program = code.replace("print('{}')", f"print('{line}', flush=True)")
        (tmp_path / "gpu_program.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(gpu_health, "TIMEOUT_S", 2.0)
        first, last = gpu_health.checks("gpu_program")
        assert (first.name, first.status, first.found) == ("GPU", "ok", "one")
        assert (last.status, last.found) == ("fail", found)


@pytest.mark.parametrize(
    ("answers", "status", "found"),
    [
        ("lambda: True", "ok", "supported"),
        ("lambda: False", "warn", "not supported"),
        ("None", "warn", "TypeError: 'NoneType' object is not callable"),
    ],
)
def test_sleep_of_vllm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: str, status: str, found: str
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    platform = (
        "class current_platform:\n"
        f"    is_sleep_mode_available = {answers}\n"
        "    is_cumem_allocator_available = lambda: True\n"
    )
    (tmp_path / "vllm" / "platforms.py").write_text(platform)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gpu_health.sleep_checks(Settings(data_dir=tmp_path)) == []
    settings = Settings(data_dir=tmp_path, vllm_python=Path(sys.executable))
    (check,) = gpu_health.sleep_checks(settings)
    assert (check.status, check.found) == (status, found)


class TestVerdicts:
    def test_all_walls(self) -> None:
        file = Opening(Wall.FILES, "/proc/self/task", is_written=True)
        two = [Opening(Wall.FILES), Opening(Wall.USER)]
        cases = {
            "ok": GpuWalls(),
            "warn": GpuWalls(problem="304", openings=[file]),
            "fail": GpuWalls(problem="304", openings=two),
        }
        for status, walls in cases.items():
            assert all_walls(walls, is_strict=False).status == status
        opened = all_walls(cases["warn"], is_strict=False)
        assert opened.found == "304"
        assert "/proc/self/task may be read and written (wall 'files')" in opened.hint
        strict = all_walls(cases["warn"], is_strict=True)
        assert strict.status == "fail" and "STOKER_GPU_SANDBOX=strict" in strict.hint

    def test_walls_that_are_not_the_cause(self) -> None:
        check = all_walls(GpuWalls(problem="304", bare_problem="100"), is_strict=False)
        assert (check.status, check.found) == ("fail", "100")
        assert "not the cause" in check.hint
        assert all_walls(GpuWalls(problem="304"), is_strict=False).status == "fail"

    @pytest.mark.parametrize(
        ("capability", "built", "runs"),
        [
            ("8.0", SUPPORTED, True),
            ("8.9", SUPPORTED, True),
            ("9.0", SUPPORTED, True),
            ("12.0", SUPPORTED, True),
            ("7.0", SUPPORTED, False),
            ("9.1", ["sm_90a"], False),
            ("12.0", ["sm_90"], False),
            ("10.3", ["sm_100"], True),
            ("9.0", [], False),
        ],
    )
    def test_devices_that_torch_was_built_for(
        self, capability: str, built: list[str], runs: bool
    ) -> None:
        assert is_built_for(capability, built) is runs


def checked(folder: Path, python: Path | str, **environment: str) -> dict[str, Any]:
    """Runs the checks with a stand-in for the driver."""
    for name in ("own", "data"):
        (folder / name).mkdir()
    cell = {"folder": str(folder / "own"), "user": None, "kept_back": str(folder / "data")}
    done = subprocess.run(
        [python, "-m", gpu_health.PROGRAM],
        input=json.dumps({"cell": cell}),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(driver.compiled(folder)),
            "PATH": f"{driver.program(folder)}:{os.environ['PATH']}",
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    return {check["name"]: check for check in checks}


@no_compiler
def test_with_a_stand_in_for_the_driver(tmp_path: Path) -> None:
    checks = checked(tmp_path, sys.executable, CUDA_STANDIN_READS="/etc/hostname")
    assert checks["GPU"]["found"] == "Stand-in, 81,559 MiB"
    assert checks["GPU: driver"]["found"] == "580.95.05, for CUDA 13.0 and earlier"
    assert checks["GPU: device files"]["status"] == "fail"
    assert "nvidia-modprobe" in checks["GPU: device files"]["hint"]
    alone = {
        name for name, check in checks.items() if "the wall" in name and check["status"] != "ok"
    }
    assert alone == {"GPU: behind the wall 'files'"}
    assert len([name for name in checks if "behind the wall" in name]) == 9
    together = checks["GPU: behind all walls"]
    assert together["status"] == "warn"
    assert "/etc/hostname may be read (wall 'files')" in together["hint"]
    assert checks["GPU: MPS"]["found"] == "does not run"


@needs_cuda_build
@no_compiler
def test_the_program_leaves_cuda_to_its_forks(tmp_path: Path) -> None:
    """The stand-in lacks most functions, so torch cannot use it. But forks may try."""
    checks = checked(tmp_path, PYTHON)
    assert checks["GPU: torch"]["status"] == "ok"
    assert checks["GPU: engine host"]["status"] == "ok", checks["GPU: engine host"]
    assert checks["GPU: torch's kernels"]["found"] == "for compute capability 9.0"
    fork = checks["GPU: context in a fork"]
    assert fork["status"] == "fail"
    assert "forked subprocess" not in fork["found"]
