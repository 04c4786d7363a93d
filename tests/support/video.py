"""Tiny diffusers pipelines for video, with random weights and the layout of real ones."""

import string
from pathlib import Path
from typing import Any

import diffusers
import msgspec
import pytest
import torch
import transformers

from stoker.media.media import Media
from stoker.models.engines.diffusers import DiffusersEngine
from stoker.models.stages.base import InputError
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.models.tasks.registry import STAGES, WORKS
from stoker.wire.video_request import VideoSpec

WIDTH = 32


def tokenizer() -> Any:
    """Returns a T5 tokenizer of single letters."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *string.ascii_letters, *string.digits, *".,!?'-"]
    vocabulary = [(piece, 0.0 if at < 3 else -2.0) for at, piece in enumerate(pieces)]
    return transformers.T5Tokenizer(vocabulary, extra_ids=0, model_max_length=512)


def _text(words: Any, kind: str = "T5") -> dict[str, Any]:
    config: Any = getattr(transformers, f"{kind}Config")
    encoder: Any = getattr(transformers, f"{kind}EncoderModel")
    sizes = {"d_model": WIDTH, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    # Weights larger than the default, so that the prompt affects the frames.
    return {
        "tokenizer": words,
        "text_encoder": encoder(config(vocab_size=len(words), initializer_factor=3.0, **sizes)),
    }


def wan(folder: Path, *, image: bool = False, clip: bool = False, expand: bool = False) -> Path:
    """Saves a Wan 2.1. Wan 2.2 has no CLIP for the image, and its small model expands time
    steps.
    """
    channels = 36 if image and not expand else 16
    transformers.set_seed(1)
    parts: dict[str, Any] = {
        **_text(tokenizer(), "UMT5"),
        "vae": diffusers.AutoencoderKLWan(
            base_dim=3,
            z_dim=16,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
        ),
        "scheduler": diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        "transformer": diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=channels,
            out_channels=16,
            text_dim=WIDTH,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
            image_dim=WIDTH if clip else None,
            added_kv_proj_dim=24 if clip else None,
        ),
        "transformer_2": None,
    }
    if not image:
        return _saved(diffusers.WanPipeline(**parts, expand_timesteps=expand), folder)
    parts |= {"image_encoder": None, "image_processor": None}
    if clip:
        tower: Any = {
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        }
        parts["image_encoder"] = transformers.CLIPVisionModel(
            transformers.CLIPVisionConfig(**tower)
        )
        parts["image_processor"] = transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        )
    return _saved(diffusers.WanImageToVideoPipeline(**parts, expand_timesteps=expand), folder)


def ltx(folder: Path, *, image: bool = False) -> Path:
    transformers.set_seed(2)
    parts: dict[str, Any] = {
        **_text(tokenizer()),
        "vae": diffusers.AutoencoderKLLTXVideo(
            latent_channels=8,
            block_out_channels=(8, 8, 8, 8),
            decoder_block_out_channels=(8, 8, 8, 8),
            layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "transformer": diffusers.LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=4,
            attention_head_dim=8,
            cross_attention_dim=32,
            num_layers=1,
            caption_channels=WIDTH,
        ),
    }
    kind = diffusers.LTXImageToVideoPipeline if image else diffusers.LTXPipeline
    return _saved(kind(**parts), folder)


def cogvideox(folder: Path, *, image: bool = False, newer: bool = False) -> Path:
    """Saves a CogVideoX 1.0, or 1.5 with `newer`. Its default size is 64 by 48 pixels and 9
    frames.
    """
    transformers.set_seed(3)
    parts: dict[str, Any] = {
        **_text(tokenizer()),
        "vae": diffusers.AutoencoderKLCogVideoX(
            latent_channels=4,
            block_out_channels=(8, 8, 8, 8),
            layers_per_block=1,
            norm_num_groups=2,
        ),
        "scheduler": diffusers.CogVideoXDDIMScheduler(),
        "transformer": diffusers.CogVideoXTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=8 if image else 4,
            out_channels=4,
            time_embed_dim=2,
            text_embed_dim=WIDTH,
            num_layers=1,
            sample_width=8,
            sample_height=6,
            sample_frames=9,
            patch_size_t=2 if newer else None,
            use_rotary_positional_embeddings=newer or image,
            # The image model of that family uses learned positions.
            use_learned_positional_embeddings=image,
        ),
    }
    kind = diffusers.CogVideoXImageToVideoPipeline if image else diffusers.CogVideoXPipeline
    return _saved(kind(**parts), folder)


def _saved(pipe: Any, folder: Path) -> Path:
    with torch.no_grad():
        for name in ("transformer", "vae"):
            for parameter in getattr(pipe, name).parameters():
                if not parameter.any():
                    # Gates and last layers start at zero, which would hide their inputs.
                    torch.nn.init.normal_(parameter, std=0.1)
    pipe.save_pretrained(folder, safe_serialization=True)
    return folder


class Maker:
    """A model of one of the two pipelines with its engine, without a worker."""

    def __init__(self, pipeline: str, folder: Path) -> None:
        self.pipeline = WORKS[pipeline]
        self.stages: Any = STAGES[pipeline](folder)
        self.engine = DiffusersEngine("cpu", "float32", 1)
        self.pipe: Any = self.engine.load(folder, self.stages, lambda *_: None)
        self.stages.attach(self.pipe)
        # Uses as many threads as a worker, because sums that are split differently round
        # differently.
        self.engine.enter_thread()

    def draw(
        self, prompt: str, image: Media | None = None, watch: Watch = UNWATCHED, **spec: Any
    ) -> Any:
        """Returns the engine's output. Raises `InputError`."""
        parameters = msgspec.to_builtins(VideoSpec(**spec))
        (sample,) = self.stages.preprocess({"prompt": prompt, "image": image}, parameters)
        return self.engine.forward([sample], watch)[0]

    def frames(self, prompt: str, image: Media | None = None, **spec: Any) -> Any:
        """Returns the frames as uint8 of shape (frames, height, width, 3)."""
        return self.draw(prompt, image, **spec)["frames"]

    def refused(self, prompt: str, image: Media | None = None, **spec: Any) -> tuple[str, str]:
        """Asserts that the input is rejected. Returns the invalid field and the message."""
        with pytest.raises(InputError) as caught:
            self.draw(prompt, image, **spec)
        return caught.value.field, caught.value.message


def directly(pipe: Any, prompt: str, seed: int, **arguments: Any) -> Any:
    """Returns the frames of diffusers itself: uint8 of shape (frames, height, width, 3)."""
    generator = torch.Generator().manual_seed(seed)
    frames = pipe(prompt=prompt, generator=generator, output_type="np", **arguments).frames[0]
    return (frames * 255).round().astype("uint8")
