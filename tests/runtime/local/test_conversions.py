"""Only replicas of engines that run conversions start with a converted model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.base.config import Settings
from stoker.base.media_limits import MediaLimits
from stoker.runtime.local.conversions.conversions import Conversions
from stoker.runtime.local.conversions.trials import TrialVerdicts
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.pool.launcher import Limits
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.conversions import VERDICT, TrialVerdict


@pytest.fixture
def conversions(tmp_path: Path) -> Conversions:
    return Conversions(
        folder=tmp_path / "cache",
        log_path=tmp_path / "conversions.log",
        host=EngineHost(tmp_path / "host.log", lambda _id, _status: None),
        cells=Sandboxes(Settings(data_dir=tmp_path)),
        after_s=10,
        media=MediaLimits(),
        threads=1,
        limits=Limits(600, 15, 180, 20),
        memory=MemoryAllocator(1 << 40, ReplicaTable()),
        on_quarantined=lambda _id, _why: None,
    )


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """Creates the files of a language model's conversion and its successful trial. Returns the
    folder.
    """
    folder = tmp_path / "converted"
    folder.mkdir()
    (folder / VERDICT).write_text(json.dumps({"forms": [{}], "reason": ""}))
    trials = TrialVerdicts(threads=1)
    passed = TrialVerdict(passed=True, speedup=2.0)
    trials.path(trials.execution(folder, "bf16")).write_bytes(msgspec.json.encode(passed))
    return folder


def test_what_is_rounded_lies_apart(conversions: Conversions, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    plain = DeploymentSpec(
        id="dep_1",
        account_id="acct_1",
        model="m",
        pipeline="token-classification",
        source="s",
        engine="openvino",
    )
    wishes: list[dict[str, Any]] = [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "int8"},
        {"config": {"weight_format": "int8"}},
        {"config": {"weight_format": "int8"}, "dtype": "bfloat16"},
    ]
    places = [conversions.place(replace(plain, **one), tmp_path) for one in wishes]
    # A rounded conversion is computed in several precisions, as the plain one is.
    assert [places.index(one) for one in places] == [0, 0, 2, 3, 3]


@pytest.mark.parametrize(
    ("engine", "begins_converted"),
    [("auto", True), ("openvino", True), ("torch", False), ("vllm", False)],
)
def test_only_engines_that_run_conversions_begin_with_one(
    conversions: Conversions, converted: Path, engine: str, begins_converted: bool
) -> None:
    """Another deployment of the same source may have converted the model."""
    spec = DeploymentSpec(
        id="dep_1",
        account_id="acct_1",
        model="m",
        pipeline="text-generation",
        source="s",
        engine=engine,
    )
    chosen = conversions.chosen(spec, converted)
    assert (chosen is not None) == begins_converted
