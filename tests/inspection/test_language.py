"""Kinds of language models for text: the accepted kinds, and the messages for the others."""

from typing import Any

import pytest

from stoker.inspection import FailureCode, InspectionError, inspect
from stoker.inspection.inspector import Inspection
from stoker.models.llm.model_types import ENCODERS, TEXT, UNFIT
from stoker.models.tasks.registry import PIPELINES

from .builders import MemoryFiles, dumps, model


def inspected(
    model_type: str, architecture: str = "XForCausalLM", pipeline: str | None = None, **more: Any
) -> Inspection:
    config = {"architectures": [architecture], "model_type": model_type, **more}
    files = {**model(config_json=dumps(config)), "preprocessor_config.json": dumps({})}
    return inspect(MemoryFiles(files), pipeline, PIPELINES)


def refused(*args: Any, **more: Any) -> InspectionError:
    with pytest.raises(InspectionError) as caught:
        inspected(*args, **more)
    assert caught.value.path == "config.json"
    return caught.value


@pytest.mark.parametrize("model_type", sorted(TEXT - ENCODERS))
def test_kinds_that_were_compared(model_type: str) -> None:
    assert inspected(model_type).pipeline == "text-generation"


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 12}, 12),
        ({"n_head": 25}, 25),
        ({"num_attention_heads": "12"}, 0),
        ({"num_attention_heads": True, "n_head": 3}, 3),
        ({"num_attention_heads": -1}, 0),
        ({}, 0),
    ],
)
def test_attention_heads(config: dict[str, Any], heads: int) -> None:
    assert inspected("llama", **config).attention_heads == heads


@pytest.mark.parametrize("model_type", sorted(UNFIT))
@pytest.mark.parametrize("pipeline", [None, "text-generation"])
def test_kinds_that_cannot_be_served(model_type: str, pipeline: str | None) -> None:
    error = refused(model_type, pipeline=pipeline)
    assert error.code is FailureCode.UNSUPPORTED_ARCHITECTURE
    assert error.message == f"XForCausalLM {UNFIT[model_type]}"


def test_kinds_that_nobody_knows() -> None:
    error = refused("my-own-kind")
    assert error.code is FailureCode.UNSUPPORTED_ARCHITECTURE
    assert "my-own-kind" in error.message
    assert "docs/tasks.md" in error.message


@pytest.mark.parametrize("model_type", sorted(ENCODERS))
def test_encoders_that_write(model_type: str) -> None:
    assert inspected(model_type, is_decoder=True).pipeline == "text-generation"
    for settings in ({}, {"is_decoder": False}):
        error = refused(model_type, **settings)
        assert error.code is FailureCode.UNSUPPORTED_MODEL
        assert '"is_decoder": true' in error.message
    assert inspected(model_type, pipeline="feature-extraction").pipeline == "feature-extraction"


def test_captions_have_a_pipeline_of_their_own() -> None:
    assert inspected("git", "GitForCausalLM").pipeline == "image-to-text"
