"""Facts about language models from their files."""

import pytest

from stoker.inspection.abilities import abilities, context_tokens
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT, TEXT_GENERATION


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"seq_length": 2048}, 2048),
        ({"text_config": {"max_position_embeddings": 512}, "max_position_embeddings": 7}, 512),
        ({"max_position_embeddings": "4096"}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": 0}, None),
        ({}, None),
        ([], None),
    ],
)
def test_context(config: object, expected: int | None) -> None:
    documents = {"config.json": config}
    assert context_tokens(IMAGE_TEXT_TO_TEXT, documents) == expected  # type: ignore[arg-type]
    assert context_tokens("fill-mask", documents) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, ()),
        ("{{ messages }}", ("chat",)),
        ("{% if tools %}{{ tools }}{% endif %}", ("chat", "tools")),
        ("{{ messages }}<think>\n</think>", ("chat", "reasoning")),
        ("<|start|>assistant<|channel|>analysis{{ tools }}", ("chat", "tools", "reasoning")),
    ],
)
def test_abilities(template: str | None, expected: tuple[str, ...]) -> None:
    assert abilities(TEXT_GENERATION, template) == expected
    assert abilities("text-classification", template) is None
