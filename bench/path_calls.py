"""Calls of `bench path`: models whose own cost is negligible, and their requests."""

import base64
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chat_models import chat_llama
from bench.chats import ANSWER_TOKENS, PATH, PIPELINE, Chats
from bench.models import LABELS, kept, tokenizer
from bench.samples import SEED, WORDS, texts

DIFFERENT = 192
"""Number of different requests of each call."""
TEXTS, SHORT_WORDS = 8, 6
"""Number of texts in a request for embeddings, and the number of words of each."""
SIDE, MODEL_SIDE = 96, 32
"""Width and height in pixels of the JPEG files, and of the model's input."""
PROMPT_TOKENS = 32

_BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}


@dataclass(frozen=True)
class PathCall:
    """A call of a real server, measured from its socket to its socket."""

    title: str
    unit: str
    """Singular of what the processor time is divided by."""
    pipeline: str
    path: str
    folder: Callable[[], Path]
    bodies: Callable[[int], Sequence[Mapping[str, Any]]]
    tokens: int = 0
    """Number of tokens of a streamed answer. 0 means that the answer is not streamed."""
    wish: Mapping[str, Any] | None = None
    """Fields of the deployment, in addition to its readiness."""


def _classifier() -> Path:
    def save(folder: Path) -> None:
        import transformers

        words = tokenizer(512)
        config = transformers.BertConfig(vocab_size=len(words), num_labels=LABELS, **_BERT)
        transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
        words.save_pretrained(folder)

    return kept("tiny-text-classifier", save)


def _encoder() -> Path:
    def save(folder: Path) -> None:
        import transformers

        words = tokenizer(512)
        config = transformers.BertConfig(vocab_size=len(words), **_BERT)
        transformers.BertModel(config).eval().save_pretrained(folder)
        words.save_pretrained(folder)

    return kept("tiny-encoder", save)


def _photo_classifier() -> Path:
    def save(folder: Path) -> None:
        import transformers

        config = transformers.ViTConfig(image_size=MODEL_SIDE, num_labels=LABELS, **_BERT)
        transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
        size = {"height": MODEL_SIDE, "width": MODEL_SIDE}
        transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)

    return kept("tiny-photo-classifier", save)


def _llama() -> Path:
    return chat_llama(
        "tiny-llama",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
    )


def _text_bodies(count: int) -> list[dict[str, Any]]:
    return [{"inputs": text} for text in texts(count)]


def _list_bodies(count: int) -> list[dict[str, Any]]:
    source = random.Random(SEED)
    return [
        {"input": [" ".join(source.choices(WORDS, k=SHORT_WORDS)) for _ in range(TEXTS)]}
        for _ in range(count)
    ]


def _photo_bodies(count: int) -> list[dict[str, Any]]:
    from PIL import Image

    source = random.Random(SEED)
    bodies: list[dict[str, Any]] = []
    for _ in range(count):
        coarse = Image.frombytes("RGB", (12, 12), source.randbytes(12 * 12 * 3))
        buffer = io.BytesIO()
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
        bodies.append({"inputs": base64.b64encode(buffer.getvalue()).decode()})
    return bodies


def _chat_bodies(count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [{"role": "user", "content": chat.content}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        for chat in Chats().draw(count, PROMPT_TOKENS)
    ]


CALLS = {
    "path_text": PathCall(
        "a text classification",
        "request",
        "text-classification",
        "/v1/classifications/text",
        _classifier,
        _text_bodies,
    ),
    "path_embeddings": PathCall(
        f"embeddings of {TEXTS} short texts",
        "request",
        "feature-extraction",
        "/v1/embeddings",
        _encoder,
        _list_bodies,
    ),
    "path_image": PathCall(
        f"an image classification, a JPEG of {SIDE} by {SIDE} pixels",
        "request",
        "image-classification",
        "/v1/classifications/image",
        _photo_classifier,
        _photo_bodies,
    ),
    "path_chat": PathCall(
        f"a streamed chat of {ANSWER_TOKENS} tokens",
        "token",
        PIPELINE,
        PATH,
        _llama,
        _chat_bodies,
        tokens=ANSWER_TOKENS,
        wish={"config": {"speculation": "off"}},
    ),
}
