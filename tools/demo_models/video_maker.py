"""Pipelines that make video from a text, or also from an image, with untrained weights."""

import string
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from tools.demo_models import common

_WIDTH = 32
_SIDE = 64
_FRAMES = 17
_LETTERS = string.ascii_letters + string.digits + string.punctuation


def _tokenizer() -> Any:
    """Returns T5's own tokenizer with single letters as tokens."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *_LETTERS]
    vocabulary = [(piece, 0.0 if at < 3 else -2.0) for at, piece in enumerate(pieces)]
    return transformers.T5Tokenizer(vocabulary, extra_ids=0, model_max_length=226)


def _pipeline(*, image: bool) -> Any:
    """Returns a CogVideoX pipeline. Of the served families, only its folder states its own size."""
    library: Any = diffusers
    words = _tokenizer()
    text = transformers.T5Config(
        vocab_size=len(words), d_model=_WIDTH, d_kv=16, d_ff=64, num_layers=1, num_heads=2
    )
    vae = library.AutoencoderKLCogVideoX(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=2
    )
    transformer = library.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=8 if image else 4,
        out_channels=4,
        time_embed_dim=16,
        text_embed_dim=_WIDTH,
        num_layers=2,
        sample_width=_SIDE // 8,
        sample_height=_SIDE // 8,
        sample_frames=_FRAMES,
        # As in the family's image-to-video models.
        use_rotary_positional_embeddings=image,
        use_learned_positional_embeddings=image,
    )
    kind = library.CogVideoXImageToVideoPipeline if image else library.CogVideoXPipeline
    return kind(
        tokenizer=words,
        text_encoder=transformers.T5EncoderModel(text),
        vae=vae,
        transformer=transformer,
        scheduler=library.CogVideoXDDIMScheduler(),
    )


def build(folder: Path, *, image: bool = False) -> None:
    """Writes the folder with a card that describes the model."""
    common.seed_everything()
    pipe = _pipeline(image=image)
    folder.mkdir(parents=True, exist_ok=True)
    pipe.save_pretrained(folder, safe_serialization=True)
    for weights in folder.rglob("*.safetensors"):
        weights.chmod(0o644)
    models = torch.nn.ModuleList([pipe.transformer, pipe.vae, pipe.text_encoder])
    common.write_card(folder, models, _card(folder.name, image=image))


BUILDS = {"random-video-maker": build, "random-photo-mover": partial(build, image=True)}


def _card(name: str, *, image: bool) -> common.Card:
    kind = "CogVideoXImageToVideoPipeline" if image else "CogVideoXPipeline"
    pipeline = "image-to-video" if image else "text-to-video"
    extra_input = "picture, " if image else ""
    return common.Card(
        title=f"{name}: random weights",
        pipeline_tag=pipeline,
        tags=("cogvideox", "random-weights", "tiny"),
        library="diffusers",
        language="",
        summary=(
            "The weights of this model are random: it was never trained, and its videos show "
            f"coloured noise, whatever the prompt. It is a `{kind}` of a very small "
            f"size, there to try {pipeline} with: jobs, their progress and their files."
        ),
        data="None.",
        source="The weights were drawn by `{build}`; no third party's data was used.",
        evaluation=(),
        example=(
            f"from diffusers import {kind}\n\n"
            f'pipe = {kind}.from_pretrained("{name}")\n'
            f'pipe({extra_input}prompt="a red ball rolls", num_inference_steps=4).frames[0]'
        ),
        limits="It can do nothing. Do not use it for anything but tests of a server.",
        bounds=f"{_FRAMES} frames of {_SIDE} by {_SIDE} pixels where nothing else is asked for",
        toolkit=f"diffusers {diffusers.__version__}",
        repeatable="They are drawn from the seed.",
    )
