"""Calls a pipeline object as a developer of such a server would.

Runs in the peers' environments, which do not contain Stoker's code.
"""

import argparse
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


def arguments() -> argparse.Namespace:
    """Returns the arguments of a peer's program: `model`, a folder, `pipeline`, `dtype` and
    `port`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--pipeline", required=True, choices=PIPELINES)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--port", type=int, required=True)
    return parser.parse_args()


def pipeline_of(model: str, pipeline: str, dtype: str, device: str = "cpu") -> Any:
    import torch
    import transformers

    loaded: Any = transformers
    return loaded.pipeline(pipeline, model=model, device=device, dtype=getattr(torch, dtype))


def decode(pipeline: str, body: dict[str, Any]) -> Any:
    """Converts a request's input to the pipeline object's input."""
    if pipeline == "token-classification":
        return body["inputs"]
    if pipeline == "audio-classification":
        return samples(base64.b64decode(body["inputs"]))
    from PIL import Image

    encoded = body["image" if "image" in body else "inputs"]
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def samples(content: bytes) -> Any:
    """Converts a WAV file with 16 bits and one channel to floats between -1 and 1."""
    import numpy

    with wave.open(io.BytesIO(content)) as file:
        raw = file.readframes(file.getnframes())
    return numpy.frombuffer(raw, dtype="<i2").astype("float32") / 32768


def ask(pipe: Any, pipeline: str, inputs: Sequence[Any], labels: list[str] | None) -> list[Any]:
    """Returns the answers to inputs, computed by the pipeline in one batch."""
    options = {"candidate_labels": labels} if labels else {}
    answers: list[Any] = pipe(list(inputs), batch_size=len(inputs), **options)
    if pipeline == "token-classification":
        # pipeline() returns numpy numbers, which JSON does not support.
        return [
            [token | {"score": float(token["score"])} for token in answer] for answer in answers
        ]
    return answers
