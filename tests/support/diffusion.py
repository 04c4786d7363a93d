"""Tiny diffusers pipelines with random weights, saved in the layout of save_pretrained."""

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

WIDTH = 32
_CLIP: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 37,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "projection_dim": WIDTH,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_UNET: dict[str, Any] = {
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": (16, 32),
    "norm_num_groups": 8,
}


def clip_tokenizer() -> Any:
    """Returns a CLIP tokenizer of single letters with CLIP's limit of 77 tokens."""
    signs = [*string.ascii_lowercase, *string.digits, ",", "."]
    words = ["<|startoftext|>", "<|endoftext|>", *signs, *(f"{sign}</w>" for sign in signs)]
    vocabulary = {word: number for number, word in enumerate(words)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5_tokenizer() -> Any:
    signs = [*string.ascii_lowercase, *string.digits]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    return transformers.T5Tokenizer(
        vocab=[*pieces, *((sign, -3.0) for sign in signs)], extra_ids=0, model_max_length=512
    )


def _clip(tokenizer: Any, head: str = "CLIPTextModel", **changes: Any) -> Any:
    config = transformers.CLIPTextConfig(**_CLIP, vocab_size=len(tokenizer), **changes)
    return getattr(transformers, head)(config)


def _t5(tokenizer: Any) -> Any:
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=WIDTH, d_kv=8, d_ff=37, num_layers=1, num_heads=4
    )
    return transformers.T5EncoderModel(config)


def _vae(channels: int = 4, **changes: Any) -> Any:
    """Returns a VAE with images twice as wide and high as their latents."""
    return diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels,
        norm_num_groups=8,
        sample_size=32,
        **changes,
    )


def stable_diffusion(
    folder: Path, cls: str = "StableDiffusionPipeline", in_channels: int = 4, checks: bool = False
) -> None:
    tokenizer = clip_tokenizer()
    unet = diffusers.UNet2DConditionModel(
        **_UNET,
        in_channels=in_channels,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
    )
    checker = _checker() if checks else {"safety_checker": None, "feature_extractor": None}
    getattr(diffusers, cls)(
        vae=_vae(),
        text_encoder=_clip(tokenizer),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1),
        requires_safety_checker=checks,
        **checker,
    ).save_pretrained(folder)


def _checker() -> dict[str, Any]:
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker

    vision = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    vision |= {"num_hidden_layers": 1, "image_size": 32, "patch_size": 16}
    checker = StableDiffusionSafetyChecker(
        transformers.CLIPConfig(vision_config=vision, projection_dim=16)
    )
    # Every image exceeds this threshold and is flagged.
    checker.concept_embeds_weights.data.fill_(-10.0)
    extractor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    return {"safety_checker": checker, "feature_extractor": extractor}


def stable_diffusion_xl(folder: Path) -> None:
    tokenizer = clip_tokenizer()
    unet = diffusers.UNet2DConditionModel(
        **_UNET,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=80,
        cross_attention_dim=2 * WIDTH,
    )
    diffusers.StableDiffusionXLPipeline(
        vae=_vae(),
        text_encoder=_clip(tokenizer, hidden_act="gelu"),
        text_encoder_2=_clip(tokenizer, "CLIPTextModelWithProjection", hidden_act="gelu"),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(timestep_spacing="leading"),
    ).save_pretrained(folder)


def stable_diffusion_3(folder: Path) -> None:
    tokenizer, long_tokenizer = clip_tokenizer(), t5_tokenizer()
    diffusers.StableDiffusion3Pipeline(
        transformer=diffusers.SD3Transformer2DModel(
            sample_size=16,
            patch_size=1,
            # diffusers' inpainting accepts no other number.
            in_channels=16,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=2 * WIDTH,
            caption_projection_dim=WIDTH,
            pooled_projection_dim=2 * WIDTH,
            out_channels=16,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(channels=16, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=_clip(tokenizer, "CLIPTextModelWithProjection"),
        tokenizer=tokenizer,
        text_encoder_2=_clip(tokenizer, "CLIPTextModelWithProjection"),
        tokenizer_2=tokenizer,
        text_encoder_3=_wide_t5(long_tokenizer),
        tokenizer_3=long_tokenizer,
    ).save_pretrained(folder)


def _wide_t5(tokenizer: Any) -> Any:
    """Returns a T5 encoder as wide as the two CLIP encoders together, as SD 3 requires."""
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=2 * WIDTH, d_kv=8, d_ff=37, num_layers=1, num_heads=4
    )
    return transformers.T5EncoderModel(config)


def flux(folder: Path) -> None:
    tokenizer, long_tokenizer = clip_tokenizer(), t5_tokenizer()
    diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(channels=1, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=_clip(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=_t5(long_tokenizer),
        tokenizer_2=long_tokenizer,
        transformer=diffusers.FluxTransformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            axes_dims_rope=(4, 4, 8),
            guidance_embeds=True,
        ),
    ).save_pretrained(folder)


def _unconditional(folder: Path, pipeline: Any, scheduler: Any) -> None:
    unet = diffusers.UNet2DModel(
        block_out_channels=(8, 16),
        norm_num_groups=8,
        layers_per_block=1,
        sample_size=(8, 16),
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline(unet=unet, scheduler=scheduler).save_pretrained(folder)


def ddpm(folder: Path) -> None:
    _unconditional(folder, diffusers.DDPMPipeline, diffusers.DDPMScheduler())


def ddim(folder: Path) -> None:
    _unconditional(folder, diffusers.DDIMPipeline, diffusers.DDIMScheduler())


def made(family: Callable[[Path], None], folder: Path) -> Path:
    torch.manual_seed(0)
    family(folder)
    return folder
