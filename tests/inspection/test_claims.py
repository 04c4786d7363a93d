"""Configurations that claim more than the weight files contain, and honest ones that look odd."""

from typing import Any

import pytest

from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.inspector import inspect
from tests.inspection.builders import PIPELINES, MemoryFiles, config, model, weights

SHAPES: dict[str, tuple[int, ...]] = {
    "bert.embeddings.word_embeddings.weight": (1000, 32),
    **{f"bert.encoder.layer.{n}.attention.self.query.weight": (32, 32) for n in range(2)},
}


def inspected(**claims: Any) -> None:
    files = model(model_safetensors=weights(**SHAPES), config_json=config(**claims))
    inspect(MemoryFiles(files), None, PIPELINES)


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"num_hidden_layers": 1200}, "'num_hidden_layers': 1200, but the weight files hold 2"),
        ({"n_layer": 13}, "hold 2 layers"),
        ({"text_config": {"num_hidden_layers": 1200}}, "'text_config.num_hidden_layers': 1200"),
        ({"vocab_size": 10**9, "hidden_size": 32}, "'vocab_size': 1000000000, but with a width"),
        ({"intermediate_size": 10**9, "hidden_size": 32}, "'intermediate_size'"),
        ({"max_position_embeddings": 10**9}, "at most 16777216 positions"),
    ],
)
def test_h5_far_more_than_there_is_is_refused(claims: dict[str, Any], words: str) -> None:
    with pytest.raises(InspectionError) as refused:
        inspected(**claims)
    assert refused.value.code is FailureCode.BAD_CONFIG
    assert refused.value.path == "config.json"
    assert words in refused.value.message


@pytest.mark.parametrize(
    "claims",
    [
        {"num_hidden_layers": 2, "vocab_size": 1000, "hidden_size": 32, "intermediate_size": 64},
        {"num_hidden_layers": 96, "num_hidden_groups": 1},
        {"vocab_size": 1000, "hidden_size": 4096, "embedding_size": 32},
        {"vision_config": {"num_hidden_layers": 32}},
        {"max_position_embeddings": 10485760},
        {"num_hidden_layers": "twelve", "vocab_size": None, "hidden_size": True},
    ],
    ids=str,
)
def test_h5_honest_ones_are_taken(claims: dict[str, Any]) -> None:
    inspected(**claims)
