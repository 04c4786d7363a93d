"""Workloads of the throughput benchmarks: a model and its requests."""

import base64
import io
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.models import (
    RATE,
    bert_base,
    clip_base,
    minilm,
    minilm_reranker,
    tiny_tagger,
    vit_base,
    wav2vec2_base,
)
from bench.peers.servers import FASTAPI, LITSERVE
from bench.samples import photos, texts, tones

Body = dict[str, Any]
Peer = Literal["fastapi", "litserve", "infinity", "sie"]

OURS = "ours"
LIMIT = "in-process, the better batch"
BEST = "ours in its best exact dtype / the best peer"

LABELS = ["cat", "dog", "bicycle", "house", "tree", "car", "person", "boat"]
"""Labels of every request, because an application would not vary them."""
DOCUMENTS = 32


@dataclass(frozen=True)
class Workload:
    """A model and its requests. `bodies(count)` returns JSON bodies for Stoker's endpoint. Peers
    receive the same ones.
    """

    title: str
    pipeline: str
    task: str
    """Name of the task in the registry."""
    path: str
    folder: Callable[[], Path]
    bodies: Callable[[int], list[Body]]
    cycle: int = 48
    """Number of different requests. Fewer than the slowest server answers in a load, so that all
    receive the same ones.
    """
    loads: Mapping[int, int] = field(default_factory=lambda: {1: 6, 4: 10, 16: 15})
    """Maps the number of clients to the seconds of a load. Long compared with an answer: the
    slowest take two seconds with 16 clients.
    """
    peers: Sequence[Peer] = ("fastapi", "litserve")
    in_float32: bool = False
    """True if peers are also measured in float32 when another dtype is faster for them."""
    aims: Mapping[str, float] = field(default_factory=lambda: {f"{BEST}, 16 clients": 2.0})
    """Maps the label of a ratio to its aimed minimum."""


def _text_bodies(count: int) -> list[Body]:
    return [{"inputs": text} for text in texts(count)]


def _embedding_bodies(count: int) -> list[Body]:
    return [{"input": text} for text in texts(count)]


def _rerank_bodies(count: int) -> list[Body]:
    drawn = texts(count * (DOCUMENTS + 1))
    starts = range(0, len(drawn), DOCUMENTS + 1)
    return [{"query": drawn[at], "documents": drawn[at + 1 : at + 1 + DOCUMENTS]} for at in starts]


def _photos(count: int) -> list[str]:
    return [base64.b64encode(photo).decode() for photo in photos(count)]


def _image_bodies(count: int) -> list[Body]:
    return [{"inputs": photo} for photo in _photos(count)]


def _zero_shot_bodies(count: int) -> list[Body]:
    return [{"image": photo, "candidate_labels": LABELS} for photo in _photos(count)]


def _audio_bodies(count: int) -> list[Body]:
    """Returns bodies with 16-bit WAV files in base64."""
    bodies: list[Body] = []
    for samples in tones(count):
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setparams((1, 2, RATE, RATE, "NONE", ""))
            file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
        bodies.append({"inputs": base64.b64encode(buffer.getvalue()).decode()})
    return bodies


WORKLOADS = {
    "text": Workload(
        "BERT-base token classification",
        "token-classification",
        "token-classification",
        "/v1/classifications/token",
        bert_base,
        _text_bodies,
        in_float32=True,
        aims={
            f"{BEST}, 16 clients": 3.0,
            f"{OURS} / {LIMIT}, 16 clients": 0.9,
            **{f"{OURS} / {peer}, float32, 16 clients": 1.5 for peer in (FASTAPI, LITSERVE)},
        },
    ),
    "small": Workload(
        "requests to a model of one layer",
        "token-classification",
        "token-classification",
        "/v1/classifications/token",
        tiny_tagger,
        _text_bodies,
        cycle=192,
        loads={1: 6, 16: 8, 64: 8},
        aims={},
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
        peers=("infinity", "sie"),
        aims={f"{BEST}, 16 clients": 3.0},
    ),
    "rerank": Workload(
        f"MiniLM reranking of {DOCUMENTS} documents",
        "text-ranking",
        "rerank",
        "/v1/rerank",
        minilm_reranker,
        _rerank_bodies,
        cycle=24,
        loads={1: 10, 4: 10, 16: 20},
        peers=("infinity", "sie"),
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
