"""Options of engines that deployments may set, checked without a server."""

import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.registry.deployments import engines, split_models
from stoker.store.tables.deployments import Deployment


def check(folder: Path, config: dict[str, Any], **fields: Any) -> None:
    settings = Settings(data_dir=folder, vllm_python=Path(sys.executable))
    row: dict[str, Any] = {"pipeline": "text-generation", "engine": "vllm", "device": "auto"}
    engines.check(settings, Deployment(**(row | {"dtype": "auto", "config": config} | fields)))


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    "config",
    [{}, {"devices": 4}, {"quantization": "fp8", "kv_cache_dtype": "fp8", "devices": None}],
)
def test_vllm_accepts(config: dict[str, Any], device: str, tmp_path: Path) -> None:
    check(tmp_path, config, device=device)


def test_one_device_may_be_named(tmp_path: Path) -> None:
    check(tmp_path, {"devices": 1}, device="cuda:1")


@pytest.mark.parametrize(
    ("config", "fields", "words"),
    [
        ({"devices": 2}, {"device": "cuda:1"}, "names a single GPU"),
        ({"devices": 2}, {"device": "cpu"}, "needs a GPU"),
        ({"quantization": "fp8"}, {"device": "cpu"}, "needs a GPU"),
        ({"devices": 2}, {"engine": "auto"}, "choose the engine 'vllm'"),
        ({"kv_cache_dtype": "fp8"}, {"engine": "torch"}, "choose the engine 'vllm'"),
        (
            {"devices": 2},
            {"engine": "torch", "pipeline": "token-classification"},
            "text generation",
        ),
        ({"speculation": "off"}, {}, "choose another 'engine'"),
    ],
)
def test_options_that_do_not_fit(
    config: dict[str, Any], fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refusal:
        check(tmp_path, config, **fields)
    (option,) = config
    assert refusal.value.param == f"config.{option}"


@pytest.mark.parametrize(
    ("heads", "devices", "choices"),
    [
        (12, 5, "to 1, 2, 3, 4, 6 or 12"),
        (7, 2, "to 1 or 7"),
        (1, 2, "to 1\\."),
        (128, 3, "16, 32 or 64"),
        (12, 4, ""),
        (12, 1, ""),
        (12, None, ""),
        (0, 5, ""),
    ],
)
def test_heads_that_the_devices_cannot_share(heads: int, devices: int | None, choices: str) -> None:
    row = Deployment(engine="vllm", config={"devices": devices})
    if not choices:
        split_models.check(heads, row)
        return
    with pytest.raises(InvalidRequestError, match=choices) as refusal:
        split_models.check(heads, row)
    assert refusal.value.param == "config.devices"


def test_other_engines_have_no_devices() -> None:
    for engine in ("auto", "torch"):
        split_models.check(12, Deployment(engine=engine, config={"devices": 5}))


@pytest.mark.parametrize(
    ("loaders", "engine", "is_refused"),
    [
        (["vllm"], "auto", True),
        (["vllm"], "torch", True),
        (["vllm"], "vllm", False),
        (["torch"], "auto", False),
        (["torch", "vllm"], "torch", False),
        ([], "auto", False),
    ],
)
def test_weights_that_only_vllm_loads(loaders: list[str], engine: str, is_refused: bool) -> None:
    row = Deployment(engine=engine)
    if not is_refused:
        engines.check_loadable(loaders, row)
        return
    with pytest.raises(InvalidRequestError, match="choose the engine 'vllm'") as refusal:
        engines.check_loadable(loaders, row)
    assert refusal.value.param == "engine"
