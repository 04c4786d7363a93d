"""What is asked of a server in the throughput benchmarks: a model and the requests for it."""

import base64
import io
import math
import random
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.models import SEED, bert_base, clip_base, minilm, texts, vit_base, wav2vec2_base

Body = dict[str, Any]
Peer = Literal["fastapi", "litserve", "infinity"]

LABELS = ["cat", "dog", "bicycle", "house", "tree", "car", "person", "boat"]
"""The same for every request, as an application would ask."""
RATE = 16_000


@dataclass(frozen=True)
class Workload:
    """`bodies(count)` are JSON bodies for our endpoint; peers get the same ones."""

    title: str
    pipeline: str
    task: str
    """As the registry names it."""
    path: str
    folder: Callable[[], Path]
    bodies: Callable[[int], list[Body]]
    cycle: int = 48
    """How many different requests there are: fewer than the slowest answers in a load, so that all
    are asked the same."""
    loads: Mapping[int, int] = field(default_factory=lambda: {1: 6, 4: 10, 16: 15})
    """Clients → seconds of a load. Long beside an answer: the slowest take two seconds at 16."""
    peers: Sequence[Peer] = ("fastapi", "litserve")


def _text_bodies(count: int) -> list[Body]:
    return [{"inputs": text} for text in texts(count)]


def _embedding_bodies(count: int) -> list[Body]:
    return [{"input": text} for text in texts(count)]


def _photos(count: int) -> list[str]:
    """JPEG files of 640 by 480 pixels in base64, some 40 KB each."""
    from PIL import Image

    source = random.Random(SEED)
    found: list[str] = []
    for _ in range(count):
        coarse = Image.frombytes("RGB", (64, 48), source.randbytes(64 * 48 * 3))
        buffer = io.BytesIO()
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
        found.append(base64.b64encode(buffer.getvalue()).decode())
    return found


def _image_bodies(count: int) -> list[Body]:
    return [{"inputs": photo} for photo in _photos(count)]


def _zero_shot_bodies(count: int) -> list[Body]:
    return [{"image": photo, "candidate_labels": LABELS} for photo in _photos(count)]


def _audio_bodies(count: int) -> list[Body]:
    """Tones of one second, as WAV files of 16 bits in base64."""
    source = random.Random(SEED)
    found: list[Body] = []
    for _ in range(count):
        pitch = source.uniform(100, 2000)
        samples = (int(9000 * math.sin(math.tau * pitch * n / RATE)) for n in range(RATE))
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setparams((1, 2, RATE, RATE, "NONE", ""))
            file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
        found.append({"inputs": base64.b64encode(buffer.getvalue()).decode()})
    return found


WORKLOADS = {
    "text": Workload(
        "BERT-base token classification",
        "token-classification",
        "token-classification",
        "/v1/classifications/token",
        bert_base,
        _text_bodies,
    ),
    "embeddings": Workload(
        "MiniLM embeddings",
        "feature-extraction",
        "embeddings",
        "/v1/embeddings",
        minilm,
        _embedding_bodies,
        cycle=192,
        loads={1: 6, 4: 6, 16: 6, 64: 8},
        peers=("infinity",),
    ),
    "image": Workload(
        "ViT-base image classification",
        "image-classification",
        "image-classification",
        "/v1/classifications/image",
        vit_base,
        _image_bodies,
    ),
    "zero_shot_image": Workload(
        "CLIP B/32 zero-shot image classification, eight labels",
        "zero-shot-image-classification",
        "zero-shot-image-classification",
        "/v1/classifications/zero-shot/image",
        clip_base,
        _zero_shot_bodies,
    ),
    "audio": Workload(
        "wav2vec2-base audio classification, one second",
        "audio-classification",
        "audio-classification",
        "/v1/classifications/audio",
        wav2vec2_base,
        _audio_bodies,
    ),
}
