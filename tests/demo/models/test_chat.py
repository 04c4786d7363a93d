"""Tests of the shipped chat model without a server. tests/openai tests it over HTTP."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stoker.demo.setup import MODELS as SHIPPED
from tests.demo.models.folders import check
from tools.demo_models import chat, chat_names

FOLDER = SHIPPED / "tiny-chat"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def test_folder() -> None:
    check("tiny-chat", "text-generation", largest=chat.LARGEST_FOLDER)


@pytest.mark.parametrize(
    "text", ["naïve 漢字 🦊", "a\tb\r\n  c", "\x00\x7f", "12345", "<tool_cal>"]
)
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_parts_are_as_their_text(tokenizer: Any) -> None:
    plain: Any = [{"role": "user", "content": "Hello!"}]
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    rendered = [
        tokenizer.apply_chat_template(messages, tokenize=False) for messages in (plain, parts)
    ]
    assert rendered[0] == rendered[1]


def test_unseen_cities_are_copied(tokenizer: Any, model: Any) -> None:
    wrong: list[str] = []
    for city in chat_names.UNSEEN_CITIES[:12]:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"What is the weather in {city}?"}],
            tools=[WEATHER],
            add_generation_prompt=True,
            tokenize=False,
        )
        encoded = tokenizer(prompt, return_tensors="pt")
        written = model.generate(**encoded, do_sample=False, max_new_tokens=60)
        text = tokenizer.decode(written[0, encoded["input_ids"].shape[1] :])
        if f'{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}' not in text:
            wrong.append(text)
    assert len(wrong) <= 1, wrong
