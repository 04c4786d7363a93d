"""Devices that a replica sees and reports, with a torch that is built for CPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stoker.base.media_limits import MediaLimits
from stoker.replica import graphics
from stoker.wire.protocol import Cell, OwnEnvironment, ReplicaSpec


def spec(visible: str | None, environment: OwnEnvironment | None = None) -> ReplicaSpec:
    return ReplicaSpec(
        id="rep_1",
        pipeline="fill-mask",
        model_dir="/m",
        address="",
        log_path="",
        flight_path="",
        engine="auto",
        device="auto",
        visible_devices=visible,
        dtype="auto",
        threads=1,
        batch_budgets={},
        limits=MediaLimits(),
        environment=environment,
        cell=Cell("/c", None, "/d"),
        secret_path="",
    )


@pytest.mark.parametrize("visible", ["GPU-1,GPU-2", ""])
def test_it_sees_what_it_has_claimed(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    graphics.restrict(spec(None))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0", "where devices are not counted"
    graphics.restrict(spec(visible))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for GPUs")
def test_a_build_for_cpus_holds_nothing_of_a_device() -> None:
    assert graphics.held(spec("GPU-1")) == 0


def test_nobody_knows_where_there_is_no_claim_or_another_process_has_it() -> None:
    environment = OwnEnvironment(python="/p", cache_dir="/c", gpu_share=0.5)
    assert graphics.held(spec(None)) is None
    assert graphics.held(spec("")) is None
    assert graphics.held(spec("GPU-1", environment)) is None


def test_a_build_for_cpus_has_no_cache_to_release() -> None:
    graphics.release_cache()
    graphics.release_cache(least=graphics.IDLE_CACHE_BYTES)


@pytest.mark.parametrize(
    ("unused", "reserved", "is_released"),
    [(100 << 20, 110 << 20, False), (300 << 20, 4 << 30, False), (1 << 30, 3 << 30, True)],
)
def test_a_large_unused_cache_is_released(
    monkeypatch: pytest.MonkeyPatch, unused: int, reserved: int, is_released: bool
) -> None:
    released: list[bool] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _place: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _place: reserved - unused)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: released.append(True))
    graphics.release_cache(least=graphics.IDLE_CACHE_BYTES)
    assert bool(released) is is_released
    graphics.release_cache()
    assert len(released) == 1 + is_released, "always after loading"


class TestProblem:
    @pytest.fixture(autouse=True)
    def _cuda_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", "13.0")

    @pytest.mark.parametrize(
        ("reason", "shown"),
        [
            (
                "The NVIDIA driver on your system is too old (found version 11040).\nUpdate",
                "too old",
            ),
            ("Unexpected error from cudaGetDeviceCount(). Error 304: OS call failed", "Error 304"),
        ],
    )
    def test_is_the_reason_of_torch(
        self, monkeypatch: pytest.MonkeyPatch, reason: str, shown: str
    ) -> None:
        def fail(*_arguments: object, **_options: object) -> None:
            raise RuntimeError(reason)

        monkeypatch.setattr(torch, "empty", fail)
        problem = graphics.problem(spec("GPU-1"))
        assert shown in problem and "stoker doctor --gpu" in problem
        assert "Update" not in problem, "only the first line"
        refusal = graphics.refusal(problem)
        assert refusal.lasting and shown in refusal.message

    def test_a_full_card_is_no_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_arguments: object, **_options: object) -> None:
            raise RuntimeError("CUDA error: out of memory")

        monkeypatch.setattr(torch, "empty", fail)
        assert graphics.problem(spec("GPU-1")) == ""

    def test_nothing_is_checked_without_a_claim(self) -> None:
        environment = OwnEnvironment(python="/p", cache_dir="/c", gpu_share=0.5)
        assert graphics.problem(spec("")) == ""
        assert graphics.problem(spec(None)) == ""
        assert graphics.problem(spec("GPU-1", environment)) == ""


def test_torch_is_not_imported_for_it() -> None:
    """The engine host has already imported torch. A replica of another engine may not need it."""
    program = (
        "import sys\n"
        "from stoker.replica import graphics\n"
        "assert 'torch' not in sys.modules\n"
        "class Spec: visible_devices, environment = 'GPU-1', None\n"
        "print(graphics.held(Spec()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ran.stdout.strip() == "None", ran.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_operations_that_load_libraries_run(dtype: torch.dtype) -> None:
    graphics.use_libraries(torch, dtype, "cpu")


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for GPUs")
def test_a_build_for_cpus_opens_no_context() -> None:
    assert graphics.open_context().startswith(f"torch {torch.__version__} is a build for CPUs.")
    assert graphics.context_problem()
