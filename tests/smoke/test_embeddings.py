import math
from collections.abc import Callable
from typing import Any

import openai


def test_a_text_is_closest_to_itself(
    sdk: openai.OpenAI, deployed: Callable[[str], dict[str, Any]]
) -> None:
    deployed("tiny-encoder")
    texts = ["Paris is in France.", "A cat sleeps.", "Paris is in France."]
    vectors = [
        item.embedding for item in sdk.embeddings.create(model="tiny-encoder", input=texts).data
    ]

    def cosine(left: list[float], right: list[float]) -> float:
        product = sum(a * b for a, b in zip(left, right, strict=True))
        return product / math.hypot(*left) / math.hypot(*right)

    assert cosine(vectors[0], vectors[2]) > 0.9999
    assert cosine(vectors[0], vectors[1]) < 0.9
