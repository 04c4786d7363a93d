"""Rows of a trial, by the devices of the machines that may run the deployment."""

from collections.abc import Collection
from pathlib import Path

import pytest

from stoker.base.config import Settings
from stoker.runtime.observed import DeviceStats, MachineStats
from stoker.store.tables.deployments import Deployment
from stoker.workloads.evaluation.trials.candidates import (
    TrialCandidate,
    candidates,
    is_on_gpu,
    why_not,
)

CPU = MachineStats()
CARD = DeviceStats(index=0, name="Tester 100", total_bytes=1, budget_bytes=1, held_bytes=0)
GPU = MachineStats(devices=[CARD])
ON_CPU = [
    ("torch", "float32"),
    ("openvino", "float32"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
    ("openvino", "auto"),
    ("torch", "bfloat16"),
]
ON_TORCH = ["float32", "tf32", "bfloat16", "float16"]


def row(device: str, pipeline: str = "token-classification") -> Deployment:
    return Deployment(pipeline=pipeline, engine="auto", device=device, dtype="auto", config={})


def ways(
    device: str, machines: Collection[MachineStats], dtypes: list[str] | None = None
) -> list[TrialCandidate]:
    on_gpu = is_on_gpu(device, machines)
    return candidates(Settings(), row(device), on_gpu=on_gpu, only_engines=None, only_dtypes=dtypes)


def names(found: list[TrialCandidate]) -> list[tuple[str, str]]:
    return [(way.engine, way.dtype) for way in found]


@pytest.mark.parametrize(
    ("device", "machines", "expected"),
    [
        ("auto", [CPU], False),
        ("auto", [CPU, GPU], True),
        ("auto", [], False),
        ("cpu", [GPU], False),
        ("cuda", [GPU], True),
        ("cuda:1", [CPU], True),
    ],
)
def test_where_a_deployment_runs(device: str, machines: list[MachineStats], expected: bool) -> None:
    assert is_on_gpu(device, machines) is expected


@pytest.mark.parametrize(("device", "machine"), [("auto", CPU), ("cpu", CPU), ("cpu", GPU)])
def test_rows_on_a_cpu(device: str, machine: MachineStats) -> None:
    assert names(ways(device, [machine])) == ON_CPU


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_rows_on_a_gpu(device: str) -> None:
    found = ways(device, [GPU])
    assert found[0] == TrialCandidate("torch", "float32")
    assert [way.dtype for way in found if way.engine == "torch"] == ON_TORCH
    assert set(ON_CPU) < set(names(found))


def test_only_some_dtypes() -> None:
    found = names(ways("cuda", [GPU], ["tf32"]))
    assert found == [("torch", "float32"), ("torch", "tf32")]
    # On a CPU, the row says why it cannot be measured.
    found = ways("auto", [CPU], ["tf32"])
    assert names(found) == [("torch", "float32"), ("torch", "tf32")]
    why = why_not(Settings(), row("auto"), found[1], on_gpu=False)
    assert why and "Only GPUs compute in tf32" in why
    assert why_not(Settings(), row("auto"), found[1], on_gpu=True) is None
    assert why_not(Settings(), row("auto"), found[0], on_gpu=False) is None


def test_a_named_gpu_excludes_engines_for_cpus(tmp_path: Path) -> None:
    found = ways("cuda", [GPU])
    for way in found:
        why = why_not(Settings(data_dir=tmp_path), row("cuda"), way, on_gpu=True)
        assert (why is None) == (way.engine == "torch"), way
