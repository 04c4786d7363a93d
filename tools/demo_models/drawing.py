"""`tiny-draw`: draws a coloured shape from words, as a small Stable Diffusion.

Latent diffusion (arXiv:2112.10752) with velocity prediction (arXiv:2202.00512). Words are sometimes
left out for classifier-free guidance (arXiv:2207.12598).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import diffusers
import numpy as np
import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTokenizer

from tools.demo_models import clip, common, drawing_measure, vision
from tools.demo_models.shapes import SIZE, Background, Scene, draw, render

_DIFFUSERS: Any = diffusers  # most of its types are unknown

LARGEST_FOLDER = 4_000_000
SCENES = 8_000
"""Number of training pictures of the autoencoder."""
CENTRED = 8_000
"""Number of pictures with a centred shape, for the training of the UNet."""
REDUCED = 8
"""Pixels per latent, along each side."""
LATENTS = 4
"""Number of values of a latent."""
VAE_STEPS = 1_100
VAE_BATCH = 8
KL = 2e-6
STEPS = 2_000
BATCH = 32
UNTOLD = 0.12
"""Share of pictures that are shown without words."""


class Artist(NamedTuple):
    """Models that convert words and noise to latents."""

    unet: Any
    reader: CLIPTextModel
    words: CLIPTokenizer
    scheduler: Any


def scenes(rng: Random, count: int, *, centred: bool = False) -> list[Scene]:
    """Returns pictures of one large shape each, on a plain pale background without grain.

    `centred` keeps the shape near the middle and almost upright.
    """
    drawn: list[Scene] = []
    for _ in range(count):
        ground = Background.draw(rng, rng.choice(("flat", "gradient")), pale=True)
        scene = draw(rng, radii=(0.24, 0.32), background=ground, noise=0)
        if centred:
            x, y = (SIZE / 2 + rng.uniform(-4, 4) for _ in range(2))
            (first,) = scene.shapes
            shape = replace(first, x=x, y=y, angle=first.angle / 3)
            scene = Scene(render([shape], ground, rng, noise=0), (shape,))
        drawn.append(scene)
    return drawn


def prompt(rng: Random, scene: Scene) -> str:
    """Returns words for the picture: usually its name, sometimes only its kind or colour, or
    none.
    """
    if rng.random() < UNTOLD:
        return ""
    shape = scene.shapes[0]
    (level,) = rng.choices(range(3), (8, 1, 1))
    phrase = rng.choice(clip.LEVELS[level][1])
    named = phrase.format((shape.name, shape.kind, shape.colour)[level])
    return rng.choice(clip.TEMPLATES).format(named)


def pixels(pictures: Sequence[Scene]) -> Tensor:
    """Returns `[pictures, 3, SIZE, SIZE]` of uint8, to be read with `vision.restored`."""
    rows = np.stack([np.asarray(scene.image) for scene in pictures])
    return torch.tensor(rows).permute(0, 3, 1, 2).contiguous()


def autoencoder() -> Any:
    """Returns an untrained autoencoder between pictures in -1..1 and `[LATENTS, SIZE / REDUCED,
    SIZE / REDUCED]`.
    """
    widths = (16, 24, 32, 48)
    vae = _DIFFUSERS.AutoencoderKL(
        sample_size=SIZE,
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        latent_channels=LATENTS,
        layers_per_block=1,
        norm_num_groups=8,
        mid_block_add_attention=False,
    )
    # The initial variance around each latent is small. With strong noise, colours would never be
    # learnt.
    with torch.no_grad():
        vae.quant_conv.bias[LATENTS:] = -4.0
    return vae


def train_autoencoder(vae: Any, images: Tensor) -> None:
    """Trains the autoencoder. `images` is `[pictures, 3, SIZE, SIZE]` of uint8."""

    def loss_of(batch: common.Batch) -> Tensor:
        pictures = batch["seen"]
        latents = vae.encode(pictures).latent_dist
        apart = vae.decode(latents.sample()).sample - pictures
        drawn = apart.abs().mean() + apart.square().mean()
        # Three latents are guided towards a thumbnail of the picture. Without this, all of them
        # learn the outlines and colours are lost.
        thumbnails = 2.5 * (nn.functional.avg_pool2d(pictures, REDUCED) - 0.5)
        led = nn.functional.mse_loss(latents.mean[:, :3], thumbnails)
        return drawn + 0.1 * led + KL * latents.kl().mean()

    def batches() -> Iterator[common.Batch]:
        for part in vision.shuffled(len(images), VAE_BATCH):
            pictures = vision.restored(images[part])
            yield {"seen": pictures.to(memory_format=torch.channels_last)}

    vae.to(memory_format=torch.channels_last)
    common.fit(vae, batches(), loss_of, steps=VAE_STEPS, peak_rate=2e-3)


def encoded(vae: Any, images: Tensor) -> Tensor:
    """Returns the mean latents of uint8 pictures, `[pictures, LATENTS, height, width]`."""
    parts = [images[start : start + 250] for start in range(0, len(images), 250)]
    with torch.no_grad():
        return torch.cat([vae.encode(vision.restored(part)).latent_dist.mean for part in parts])


def artist() -> Artist:
    """Returns an untrained UNet and `tiny-clip`'s text model, which already distinguishes kinds and
    colours.
    """
    words = CLIPTokenizer.from_pretrained(drawing_measure.JUDGE)
    reader = CLIPTextModel.from_pretrained(drawing_measure.JUDGE).requires_grad_(False)
    unet = _DIFFUSERS.UNet2DConditionModel(
        sample_size=SIZE // REDUCED,
        in_channels=LATENTS,
        out_channels=LATENTS,
        block_out_channels=(48, 56),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=reader.config.hidden_size,
        attention_head_dim=4,
        norm_num_groups=8,
        # The words as a whole condition every block, in addition to attention to each of them.
        # Without this, the kinds of shapes are learnt long after the colours.
        addition_embed_type="text",
        addition_embed_type_num_heads=4,
        resnet_time_scale_shift="scale_shift",
    )
    # The last diffusion step is pure noise, because drawing starts from noise: arXiv:2305.08891.
    scheduler = _DIFFUSERS.DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
        clip_sample=False,
        steps_offset=1,
    )
    return Artist(unet, reader, words, scheduler)


def train_artist(learner: Artist, latents: Tensor, pictures: Sequence[Scene], rng: Random) -> None:
    """Trains the UNet to predict the velocity from noise and words. `latents` have unit
    variance.
    """
    unet, reader, words, scheduler = learner

    @cache
    def read(said: str) -> Tensor:
        ids = words(said, padding="max_length", truncation=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            return reader(ids).last_hidden_state

    def loss_of(batch: common.Batch) -> Tensor:
        clean, noise, times = batch["clean"], batch["noise"], batch["times"]
        velocity = unet(scheduler.add_noise(clean, noise, times), times, batch["told"]).sample
        return nn.functional.mse_loss(velocity, scheduler.get_velocity(clean, noise, times))

    def batches() -> Iterator[common.Batch]:
        for part in vision.shuffled(len(latents), BATCH):
            clean = latents[part]
            yield {
                "told": torch.cat([read(prompt(rng, pictures[int(at)])) for at in part]),
                "clean": clean,
                "noise": torch.randn_like(clean),
                "times": torch.randint(scheduler.config["num_train_timesteps"], (len(part),)),
            }

    common.fit(unet, batches(), loss_of, steps=STEPS, peak_rate=2e-3)


def save(vae: Any, trained: Artist, folder: Path) -> Any:
    """Writes the folder, with the convolutions in half precision. Returns the written pipeline."""
    pipeline = _DIFFUSERS.StableDiffusionPipeline(
        vae=vae.to(memory_format=torch.contiguous_format).half(),
        unet=trained.unet.half(),
        text_encoder=trained.reader,
        tokenizer=trained.words,
        scheduler=trained.scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    # Safetensors makes its files readable only by their owner.
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)
    return pipeline


def build(folder: Path) -> None:
    """Trains the parts, measures the saved parts and writes their folder."""
    rng = common.seed_everything()
    vae = autoencoder()
    train_autoencoder(vae, pixels(scenes(rng, SCENES)))
    # Seeded again, so that this half can be trained without the other.
    rng = common.seed_everything()
    pictures = scenes(rng, CENTRED, centred=True)
    latents = encoded(vae, pixels(pictures))
    scale = 1 / latents.std().item()
    vae.register_to_config(scaling_factor=scale)
    learner = artist()
    train_artist(learner, scale * latents, pictures, rng)
    pipeline = save(vae, learner, folder)
    parts = nn.ModuleList([pipeline.unet, pipeline.vae, pipeline.text_encoder])
    common.write_card(folder, parts, _card(folder), largest=LARGEST_FOLDER)


def _card(folder: Path) -> common.Card:
    cells = SIZE // REDUCED
    return common.Card(
        title="tiny-draw: coloured shapes from words",
        pipeline_tag="text-to-image",
        tags=("stable-diffusion", "shapes", "text-to-image", "tiny"),
        library="diffusers",
        summary=(
            "A latent diffusion model in the layout of Stable Diffusion that draws one coloured "
            f'shape of {SIZE} by {SIZE} pixels from words such as "a red circle". Its autoencoder '
            f"makes {cells} by {cells} latents of {LATENTS} values of a picture; a UNet of two "
            "levels draws such latents after words that the text model of `tiny-clip` has read. "
            "The convolutions are stored in half precision, to be computed in either."
        ),
        data=(
            f"{SCENES:,} pictures for the autoencoder, each with one shape: "
            f"{vision.PORTRAIT.split(', on a ')[0]}, on a pale greyish ground that is flat or "
            f"shaded, without grain. {CENTRED:,} more for drawing have the shape within 4 pixels "
            "of the middle and turned by at most 9 degrees. Each of those came with its name, its "
            f"kind or its colour in {len(clip.TEMPLATES)} templates, or with no words."
        ),
        evaluation=list(drawing_measure.figures(folder)),
        example=(
            "import torch\n"
            "from diffusers import StableDiffusionPipeline\n\n"
            'draw = StableDiffusionPipeline.from_pretrained("tiny-draw")\n'
            "seed = torch.Generator().manual_seed(0)\n"
            'draw("a red circle", num_inference_steps=20, generator=seed).images[0]'
        ),
        limits=(
            "One shape in the middle of a picture, and the words of its captions: other words, "
            "counts and places are ignored or spoil the picture, as do sizes other than its own."
        ),
        **vision.CARD
        | {
            "language": "en",
            "bounds": f"at most {clip.LONGEST} tokens a prompt",
            "toolkit": f"diffusers {diffusers.__version__}",
        },
    )
