from collections.abc import Callable
from typing import Any

import openai

from tests.agents.support import FRANCE, PARIS


def test_whole_and_streamed(sdk: openai.OpenAI, deployed: Callable[[str], dict[str, Any]]) -> None:
    deployed("tiny-chat")
    messages: list[Any] = [{"role": "user", "content": FRANCE}]
    whole = sdk.chat.completions.create(model="tiny-chat", messages=messages, temperature=0)
    assert whole.choices[0].message.content == PARIS
    stream = sdk.chat.completions.create(
        model="tiny-chat", messages=messages, temperature=0, stream=True
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(parts) > 1
    assert "".join(parts) == PARIS
    response = sdk.responses.create(model="tiny-chat", input=FRANCE, temperature=0)
    assert response.output_text == PARIS
