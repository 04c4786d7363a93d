"""Dtypes and weight formats that a deployment may use, and the errors for unsupported ones."""

from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.registry.deployments import engines
from stoker.store.tables.deployments import Deployment

ROUNDED = {"weight_format": "int8"}


def row(pipeline: str, **fields: Any) -> Deployment:
    usual = {"engine": "auto", "device": "auto", "dtype": "auto", "config": {}}
    return Deployment(pipeline=pipeline, **(usual | fields))


@pytest.mark.parametrize("engine", ["auto", "openvino"])
@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize(
    "fields", [{"dtype": "int8"}, {"config": ROUNDED}, {"config": ROUNDED, "dtype": "bfloat16"}]
)
@pytest.mark.parametrize(
    "pipeline",
    ["feature-extraction", "image-classification", "automatic-speech-recognition"],
)
def test_what_is_converted_has_it(
    pipeline: str, fields: dict[str, Any], device: str, engine: str
) -> None:
    engines.check(Settings(), row(pipeline, engine=engine, device=device, **fields))


@pytest.mark.parametrize(
    ("pipeline", "fields", "param", "words"),
    [
        (
            "text-generation",
            {"dtype": "int8"},
            "dtype",
            "Leave out 'dtype', or use one of float32, bfloat16, float16. To keep the weights "
            "in eight bits, set 'weight_format' to 'int8' in 'config'.",
        ),
        ("text-generation", {"dtype": "int8", "engine": "openvino"}, "dtype", "'weight_format'"),
        ("image-text-to-text", {"dtype": "int8"}, "dtype", "does not support the dtype int8"),
        (
            "text-to-speech",
            {"dtype": "int8"},
            "dtype",
            "'text-to-speech' does not support the dtype int8",
        ),
        (
            "text-to-image",
            {"dtype": "int8"},
            "dtype",
            "'text-to-image' does not support the dtype int8",
        ),
        ("fill-mask", {"dtype": "int8", "engine": "torch"}, "engine", "choose 'openvino'"),
        ("fill-mask", {"dtype": "int8", "device": "cuda"}, "dtype", "on OpenVINO, not on a GPU"),
        ("fill-mask", {"dtype": "int8", "device": "cuda:1", "engine": "openvino"}, "engine", "CPU"),
        (
            "fill-mask",
            {"dtype": "int8", "config": ROUNDED},
            "config.weight_format",
            "have eight bits already: leave out 'weight_format'",
        ),
        (
            "fill-mask",
            {"config": {"weight_format": "int4"}},
            "config.weight_format",
            "cannot be 'int4' for 'fill-mask': choose 'int8'",
        ),
        (
            "fill-mask",
            {"config": ROUNDED, "engine": "torch"},
            "config.weight_format",
            "choose the engine 'openvino'",
        ),
        ("text-to-image", {"config": ROUNDED}, "config.weight_format", "leave it out"),
    ],
)
def test_others_are_told(pipeline: str, fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        engines.check(Settings(), row(pipeline, **fields))
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"dtype": "int8"}, "dtype", "'int8'"),
        ({"config": ROUNDED}, "config.weight_format", "'weight_format'"),
    ],
)
def test_without_nncf(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str, what: str
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _name: None)
    with pytest.raises(InvalidRequestError) as caught:
        engines.check(Settings(), row("fill-mask", **fields))
    assert caught.value.param == param
    assert caught.value.message == (
        f"{what} needs NNCF, which is not installed on the server. There, 'stoker doctor' shows "
        "the command that installs it."
    )
    engines.check(Settings(), row("fill-mask", dtype="bfloat16"))


@pytest.mark.parametrize("pipeline", ["fill-mask", "text-generation", "text-to-image"])
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_tf32_on_a_gpu(pipeline: str, device: str) -> None:
    engines.check(Settings(), row(pipeline, dtype="tf32", device=device))


@pytest.mark.parametrize(
    ("fields", "param"), [({"device": "cpu"}, "dtype"), ({"engine": "openvino"}, "engine")]
)
def test_tf32_elsewhere(fields: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        engines.check(Settings(), row("fill-mask", dtype="tf32", **fields))
    assert caught.value.param == param
