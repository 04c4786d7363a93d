"""The responses that docs/tasks/ shows are those of the demo's models."""

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stoker.demo.examples import EXAMPLES
from stoker.models.tasks.registry import TASKS
from tests.support.server import Server
from tools import task_pages
from tools.task_pictures import PICTURES, picture

TOLERANCE = 0.02
TONES, MOST_PIXELS = 16, 0.02
VARYING = {"id"}
SAME_CHARS = 20
"""Characters that all encodings of one picture have in common."""


def is_about(shown: Any, answer: Any, *, is_random: bool) -> bool:
    """Returns True if two shortened responses agree. Answers of random models need only the same
    fields, because their values differ between processors.
    """
    if isinstance(shown, dict):
        return shown.keys() == answer.keys() and all(
            is_about(shown[name], answer[name], is_random=is_random)
            for name in shown.keys() - VARYING
        )
    if isinstance(shown, list):
        pairs = zip(shown, answer, strict=not is_random)
        return all(is_about(*pair, is_random=is_random) for pair in pairs)
    if is_random:
        return type(shown) is type(answer)
    if isinstance(shown, float):
        return abs(shown - answer) <= TOLERANCE
    if isinstance(shown, str) and shown.endswith(task_pages.CUT):
        return bool(answer[:SAME_CHARS] == shown[:SAME_CHARS])
    return bool(shown == answer)


@pytest.mark.parametrize("name", TASKS)
def test_the_shown_response_is_the_real_one(demo: Server, state: Any, name: str) -> None:
    shown = json.loads(task_pages.RESPONSES.read_text())[name]
    with demo.client(state["account_key"]) as client:
        answer = task_pages.shortened(task_pages.ask(client, name))
    is_random = EXAMPLES[name].model.startswith("random-")
    assert is_about(shown, answer, is_random=is_random), answer


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_shows_the_real_response(demo: Server, state: Any, name: str) -> None:
    with demo.client(state["account_key"]) as client:
        drawn = picture(name, task_pages.ask(client, name))
    real, shown = (
        np.asarray(Image.open(io.BytesIO(content)), dtype=float)
        for content in (drawn, task_pages.picture_of(name).read_bytes())
    )
    assert real.shape == shown.shape
    # Text of scores and edges of masks may differ by some pixels between processors.
    assert (np.abs(real - shown) > TONES).mean() < MOST_PIXELS
    (left,) = {real.shape[1] // 2}
    assert np.abs(real[:, :left] - real[:, -left:]).max() > TONES
