import base64
import io
from collections.abc import Callable
from typing import Any

import openai
from PIL import Image


def test_the_same_seed_draws_the_same_image(
    sdk: openai.OpenAI, deployed: Callable[[str], dict[str, Any]]
) -> None:
    deployed("tiny-draw")
    drawn: list[bytes] = []
    for seed in (1, 1, 2):
        answer = sdk.images.generate(
            model="tiny-draw",
            prompt="a red circle",
            response_format="b64_json",
            extra_body={"seed": seed, "num_inference_steps": 4},
        )
        assert answer.data
        content = base64.b64decode(answer.data[0].b64_json or "")
        drawn.append(Image.open(io.BytesIO(content)).convert("RGB").tobytes())
    assert drawn[0] == drawn[1] != drawn[2]
