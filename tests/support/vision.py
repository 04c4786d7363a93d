"""Parts of tiny vision models, and a reader for their answers."""

import base64
import io
from typing import Any

import numpy
from PIL import Image

SIZE = 32
"""Side of the tiny models' input images in pixels."""
SQUARE = {"height": SIZE, "width": SIZE}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
"""Configuration of a tiny transformer."""
VISION = {**TOWER, "image_size": SIZE, "patch_size": 8}


def clip_tokenizer(max_tokens: int) -> Any:
    """Returns a CLIP tokenizer of single letters. Its last token ends a text, as CLIP expects."""
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,{}:"
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    return transformers.CLIPTokenizer(vocabulary, [], model_max_length=max_tokens)


def clip_text(tokenizer: Any, max_tokens: int) -> dict[str, Any]:
    """Returns the configuration of a text tower for that tokenizer."""
    return {
        **TOWER,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max_tokens,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def resnet(**options: Any) -> Any:
    """Returns the configuration of a DETR backbone that needs no timm."""
    import transformers

    return transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
        **options,
    )


def grey(encoded: str) -> Any:
    """Returns the pixels of a base64 PNG with 8 bits of grey, as a list of rows."""
    image = Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)))
    assert (image.format, image.mode) == ("PNG", "L")
    return numpy.asarray(image).tolist()
