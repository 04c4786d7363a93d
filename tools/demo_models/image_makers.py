"""`random-image-maker` and `random-inpainter`: image pipelines with untrained weights."""

import string
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from tools.demo_models import common

_DIFFUSERS: Any = diffusers  # most of its types are unknown
_SIDE = 32
_WIDTH = 32
_LETTERS = string.ascii_lowercase + string.digits + string.punctuation
_UNET: dict[str, Any] = {
    "layers_per_block": 1,
    "block_out_channels": (8, 16),
    "norm_num_groups": 8,
}


def build_image_maker(folder: Path) -> None:
    """Writes the folder with a card that describes the model."""
    common.seed_everything()
    unet = _DIFFUSERS.UNet2DModel(
        **_UNET,
        sample_size=_SIDE,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipe = _DIFFUSERS.DDIMPipeline(unet=unet, scheduler=_DIFFUSERS.DDIMScheduler())
    use = "pipe(num_inference_steps=4).images[0]"
    tries = "images of noise alone with: `/v1/images/generations` without a prompt"
    task = "unconditional-image-generation"
    _save(folder, pipe, [unet], pipeline=task, tries=tries, use=use)


def build_inpainter(folder: Path) -> None:
    """Writes the folder with a card that describes the model."""
    common.seed_everything()
    signs = [*_LETTERS, *(f"{sign}</w>" for sign in _LETTERS)]
    words = ["<|startoftext|>", "<|endoftext|>", *signs]
    tokenizer = transformers.CLIPTokenizer(
        vocab={word: at for at, word in enumerate(words)}, merges=[], model_max_length=77
    )
    text = transformers.CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=_WIDTH,
        intermediate_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    # The channels are latents, the mask, and the latents of the unmasked part.
    unet = _DIFFUSERS.UNet2DConditionModel(
        **_UNET,
        sample_size=_SIDE // 2,
        in_channels=9,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=_WIDTH,
        attention_head_dim=8,
    )
    vae = _DIFFUSERS.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=_SIDE,
    )
    pipe = _DIFFUSERS.StableDiffusionInpaintPipeline(
        vae=vae,
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=_DIFFUSERS.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    use = 'pipe("a red ball", image=image, mask_image=mask, num_inference_steps=4).images[0]'
    tries = "edits with a mask with: `/v1/images/edits`"
    models = [unet, vae, pipe.text_encoder]
    _save(folder, pipe, models, pipeline="image-to-image", tries=tries, use=use)


def _save(
    folder: Path, pipe: Any, models: list[torch.nn.Module], *, pipeline: str, tries: str, use: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pipe.save_pretrained(folder, safe_serialization=True)
    for weights in folder.rglob("*.safetensors"):
        weights.chmod(0o644)
    kind = type(pipe).__name__
    card = common.Card(
        title=f"{folder.name}: random weights",
        pipeline_tag=pipeline,
        tags=("random-weights", "tiny"),
        library="diffusers",
        language="",
        summary=(
            "The weights of this model are random: it was never trained, and its images show "
            f"coloured noise. It is a `{kind}` of a very small size, there to try {tries}."
        ),
        data="None.",
        source="The weights were drawn by `{build}`; no third party's data was used.",
        evaluation=(),
        example=(
            f'from diffusers import {kind}\n\npipe = {kind}.from_pretrained("{folder.name}")\n{use}'
        ),
        limits="It can do nothing. Do not use it for anything but tests of a server.",
        bounds=f"{_SIDE} by {_SIDE} pixels where nothing else is asked for",
        toolkit=f"diffusers {diffusers.__version__}",
        repeatable="They are drawn from the seed.",
    )
    common.write_card(folder, torch.nn.ModuleList(models), card)
