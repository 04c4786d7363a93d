"""How the peers ask a pipeline object: what someone who writes such a server would do."""

import base64
import io
import wave
from collections.abc import Sequence
from typing import Any

PIPELINES = (
    "token-classification",
    "image-classification",
    "zero-shot-image-classification",
    "audio-classification",
)


def decode(pipeline: str, body: dict[str, Any]) -> Any:
    """A request's input as the pipeline object takes it."""
    if pipeline == "token-classification":
        return body["inputs"]
    if pipeline == "audio-classification":
        import numpy

        with wave.open(io.BytesIO(base64.b64decode(body["inputs"]))) as file:
            samples = numpy.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return samples.astype("float32") / 32768
    from PIL import Image

    encoded = body["image" if "image" in body else "inputs"]
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def ask(pipe: Any, pipeline: str, inputs: Sequence[Any], labels: list[str] | None) -> list[Any]:
    """The answers to inputs that go through the pipeline in one batch."""
    options = {"candidate_labels": labels} if labels else {}
    answers: list[Any] = pipe(list(inputs), batch_size=len(inputs), **options)
    if pipeline == "token-classification":
        # pipeline() answers with numpy numbers, which JSON does not know.
        return [
            [token | {"score": float(token["score"])} for token in answer] for answer in answers
        ]
    return answers
