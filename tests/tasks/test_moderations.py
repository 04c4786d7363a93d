"""Moderation against text classification by the same model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import ValidationError

import stoker.demo
from stoker.models.tasks.moderations import ModerationRequest, is_harmless
from tests.support.deploying import deploy
from tests.support.local import Local, RefusedError
from tests.support.server import Server

FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
GOOD, BAD = "The food was great.", "The food was not good at all."


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    local = Local("text-classification", FOLDER)
    yield local
    local.close()


def test_scores_are_those_of_the_classifier(local: Local) -> None:
    answer = local.ask({"input": [GOOD, BAD]}, "moderation")
    assert answer["id"].startswith("modr-")
    for result, text in zip(answer["results"], (GOOD, BAD), strict=True):
        labels = local.ask({"inputs": text}, "text-classification")
        scores = {label["label"]: label["score"] for label in labels}
        assert result["category_scores"] == pytest.approx(scores, abs=1e-6)
        assert result["categories"] == {name: score >= 0.5 for name, score in scores.items()}
        assert result["category_applied_input_types"] == {name: ["text"] for name in scores}


def test_threshold_and_parts(local: Local) -> None:
    (one,) = local.ask({"input": BAD, "threshold": 1.0}, "moderation")["results"]
    assert (one["flagged"], *one["categories"].values()) == (False, False, False)
    parts = [{"type": "text", "text": text} for text in (GOOD, BAD)]
    (together,) = local.ask({"input": parts}, "moderation")["results"]
    (joined,) = local.ask({"input": f"{GOOD}\n{BAD}"}, "moderation")["results"]
    assert together == joined


def test_harmless_labels_flag_nothing() -> None:
    assert is_harmless("Neutral") and is_harmless("not toxic") and is_harmless("non-toxic")
    assert not is_harmless("toxic") and not is_harmless("LABEL_0")


def test_long_text_is_named(local: Local) -> None:
    long = "good " * 5000
    with pytest.raises(RefusedError) as refused:
        local.ask({"input": [GOOD, long]}, "moderation")
    assert refused.value.failure.param == "input[1]"
    assert local.ask({"input": long, "truncation": True}, "moderation")["results"]


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "", [""], 1, [1], {"type": "text", "text": "a"}),
        [{"type": "image_url", "image_url": {"url": "https://models.example/a.png"}}],
        [{"type": "text"}],
        [{"type": "text", "text": "a"}, "b"],
        ["a"] * 1001,
    ],
)
def test_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        ModerationRequest.model_validate({"input": value})


def test_sdk(server: Server) -> None:
    server.wait_ready()
    with server.account("moderations") as client:
        deploy(client, FOLDER, "moderator")
        key = client.headers["authorization"].removeprefix("Bearer ")
        sdk = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)
        (result,) = sdk.moderations.create(model="moderator", input=BAD).results
        labels = client.post("/v1/classifications/text", json={"inputs": BAD}).json()
        assert result.flagged
        assert labels[0]["label"] == "negative"
        scores: Any = result.category_scores
        assert scores.negative == pytest.approx(labels[0]["score"], abs=1e-6)
        with pytest.raises(openai.BadRequestError, match="input"):
            sdk.moderations.create(model="moderator", input=[])
