"""Which replicas begin with a converted model: those of engines that run one."""

import json
from pathlib import Path

import msgspec
import pytest

from stoker.media.media_limits import MediaLimits
from stoker.runtime.interface import DeploymentSpec
from stoker.runtime.local.conversions import Conversions
from stoker.runtime.local.engine_host import EngineHost
from stoker.runtime.local.trials import Trials
from stoker.runtime.pool.launcher import Limits
from stoker.wire.protocol import VERDICT, TrialVerdict


@pytest.fixture
def conversions(tmp_path: Path) -> Conversions:
    return Conversions(
        folder=tmp_path / "cache",
        logs=tmp_path,
        host=EngineHost(tmp_path / "host.log", lambda _id, _status: None),
        after_s=10,
        media=MediaLimits(),
        threads=1,
        limits=Limits(600, 15, 180, 20),
        on_quarantined=lambda _id, _why: None,
    )


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """What a conversion of a language model and its trial leave: it is to be used."""
    folder = tmp_path / "converted"
    folder.mkdir()
    (folder / VERDICT).write_text(json.dumps({"forms": [{}], "reason": ""}))
    trials = Trials(threads=1)
    passed = TrialVerdict(passed=True, speedup=2.0)
    trials.path(trials.execution(folder, "bf16")).write_bytes(msgspec.json.encode(passed))
    return folder


@pytest.mark.parametrize(
    ("engine", "begins_converted"),
    [("auto", True), ("openvino", True), ("torch", False), ("vllm", False)],
)
def test_only_engines_that_run_conversions_begin_with_one(
    conversions: Conversions, converted: Path, engine: str, begins_converted: bool
) -> None:
    """Another deployment of the same source may have had the model converted."""
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
