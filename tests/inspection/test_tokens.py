"""Tokens beyond the embedding: harmless, unless every text needs them."""

from typing import Any

import pytest

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.tokens import refuse_missing_rows
from tests.llm.support import CHATML, HERMES

ROWS = 100


def documents(processor: Any = None, config: Any = None, **added: int) -> dict[str, Json]:
    tokens: Any = [
        {"id": token_id, "content": name, "special": True} for name, token_id in added.items()
    ]
    return {
        "config.json": config or {"vocab_size": ROWS},
        "tokenizer.json": {"added_tokens": tokens, "post_processor": processor},
    }


def template(token: int, used: str = "[CLS]") -> Any:
    single = [{"SpecialToken": {"id": used, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"[CLS]": {"id": "[CLS]", "ids": [token], "tokens": ["[CLS]"]}}
    return {"type": "TemplateProcessing", "single": single, "special_tokens": special}


def refusal(given: dict[str, Json], chat: str | None = None) -> str | None:
    try:
        refuse_missing_rows(given, chat)
    except InspectionError as error:
        assert error.code is FailureCode.TOKENIZER_MISMATCH
        assert error.path == "tokenizer.json"
        return error.message
    return None


@pytest.mark.parametrize(
    "make",
    [
        template,
        lambda token: {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", token]},
        lambda token: {"type": "Sequence", "processors": [{"type": "x"}, template(token)]},
    ],
)
def test_what_is_put_around_every_text_has_to_have_a_row(make: Any) -> None:
    assert refusal(documents(make(ROWS - 1))) is None
    message = refusal(documents(make(ROWS)))
    assert message is not None
    assert f"id {ROWS}" in message
    assert f"{ROWS} tokens, 0 to {ROWS - 1}" in message


@pytest.mark.parametrize(
    ("given", "chat"),
    [
        (documents(extra=ROWS), None),
        (documents(template(ROWS, used="[OTHER]")), None),
        (documents(template(ROWS), {"vocab_size": 4, "text_config": {"vocab_size": 200}}), None),
        (documents(template(ROWS), {"hidden_size": 4}), None),
        ({"config.json": {"vocab_size": ROWS}}, CHATML),
        (documents(**{"<|im_start|>": 3, "<tool_call>": ROWS}), HERMES),
        (documents(**{"<image>": ROWS}), "{% if part.type == 'image' %}<image>{% endif %}x"),
    ],
)
def test_other_tokens_beyond_it_are_harmless(given: dict[str, Json], chat: str | None) -> None:
    assert refusal(given, chat) is None


@pytest.mark.parametrize("chat", [CHATML, HERMES, "{%- if messages %}<|im_start|>{% endif -%}"])
def test_what_the_chat_template_always_writes_has_to_have_a_row(chat: str) -> None:
    message = refusal(documents(**{"<|im_start|>": ROWS}), chat)
    assert message is not None
    assert "the chat template needs it" in message
