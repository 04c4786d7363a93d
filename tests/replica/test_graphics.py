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
