"""Precision and memory format of pipelines on a GPU. The format changes no image, which is proven
on the CPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from stoker.models.engines.diffusers import (
    DiffusersEngine,
    dtypes_of_parts,
    half_precision,
    use_channels_last,
)
from stoker.models.tasks.registry import STAGES
from tests.diffusion.test_drawing import FAMILIES, PROMPT, Drawer, near
from tests.support import diffusion
from tests.support.video import wan

HALF = (torch.float16, torch.bfloat16)


def made(family: Callable[[Path], None], folder: Path, dtype: torch.dtype | None = None) -> Path:
    diffusion.made(family, folder)
    if dtype:
        diffusers.DiffusionPipeline.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_channels_last_draws_the_same(family: str, tmp_path: Path) -> None:
    usual, other = (
        Drawer("text-to-image", made(FAMILIES[family], tmp_path / name)) for name in ("a", "b")
    )
    use_channels_last(other.engine.pipe)
    convolutions = [
        weight
        for name in ("unet", "vae")
        for weight in getattr(getattr(other.engine.pipe, name, None), "parameters", list)()
        if weight.dim() == 4
    ]
    assert convolutions
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convolutions)
    expected = usual.draw({"prompt": PROMPT}, seed=7, n=2)
    for actual, picture in zip(other.draw({"prompt": PROMPT}, seed=7, n=2), expected, strict=True):
        near(actual, picture)
    # Images that share a batch.
    samples = [*other.samples({"prompt": PROMPT}, n=2)]
    for sample, seed in zip(samples, (7, 8), strict=True):
        sample.extras["seed"] = seed
    for actual, picture in zip(other.together(samples), expected, strict=True):
        near(actual, picture)


@pytest.mark.parametrize("family", [diffusion.ddpm, diffusion.ddim])
def test_channels_last_without_an_autoencoder(family: Any, tmp_path: Path) -> None:
    drawers = [
        Drawer("unconditional-image-generation", made(family, tmp_path / name)) for name in "ab"
    ]
    use_channels_last(drawers[1].engine.pipe)
    (expected,), (actual,) = (
        drawer.opened(
            drawer.stages.postprocess(
                [drawer.engine.forward(drawer.stages.preprocess({}, {"seed": 3, "steps": 2}))[0]],
                {},
            )
        )
        for drawer in drawers
    )
    near(actual, expected)


def test_a_video_is_left_alone(tmp_path: Path) -> None:
    pipe = diffusers.DiffusionPipeline.from_pretrained(wan(tmp_path))
    before = [weight.stride() for weight in pipe.vae.parameters()]
    use_channels_last(pipe)
    assert [weight.stride() for weight in pipe.vae.parameters()] == before


@pytest.mark.parametrize(
    ("family", "usual"),
    [
        ("stable-diffusion", torch.float16),
        ("stable-diffusion-xl", torch.float16),
        ("stable-diffusion-3", torch.bfloat16),
        ("flux", torch.bfloat16),
    ],
)
def test_the_precision_on_a_gpu(family: str, usual: torch.dtype, tmp_path: Path) -> None:
    folder = made(FAMILIES[family], tmp_path / "single")
    assert half_precision(folder, has_bfloat16=True) is usual
    assert half_precision(folder, has_bfloat16=False) is torch.float16
    for dtype in HALF:
        folder = made(FAMILIES[family], tmp_path / str(dtype), dtype)
        assert half_precision(folder, has_bfloat16=True) is dtype
    assert dtypes_of_parts(folder, usual) == {"default": usual}


def test_an_autoencoder_that_stays_in_single_precision(tmp_path: Path) -> None:
    folder = wan(tmp_path)
    assert half_precision(folder, has_bfloat16=True) is torch.bfloat16
    dtypes = dtypes_of_parts(folder, torch.bfloat16)
    assert dtypes == {"default": torch.bfloat16, "vae": torch.float32}
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, dtype=dtypes)
    assert (pipe.transformer.dtype, pipe.vae.dtype) == (torch.bfloat16, torch.float32)
    pipe.set_progress_bar_config(disable=True)
    frames = pipe(
        "a cat", height=16, width=16, num_frames=5, num_inference_steps=2, output_type="pt"
    ).frames
    assert frames.isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_draws_nearly_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = made(diffusion.stable_diffusion_xl, tmp_path)
    stages: Any = STAGES["text-to-image"](folder)
    engine = DiffusersEngine("cpu", str(dtype).removeprefix("torch."), 1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    engine.enter_thread()
    use_channels_last(engine.pipe)
    assert engine.pipe.unet.dtype is dtype
    assert engine.pipe.vae.config.force_upcast
    single = Drawer("text-to-image", folder)
    (sample,) = single.samples({"prompt": PROMPT}, seed=7)
    (half,), (expected,) = engine.forward([sample]), single.engine.forward([sample])
    assert half["pixels"].isfinite().all()
    assert (half["pixels"] - expected["pixels"]).abs().mean() < 0.05
    assert engine.pipe.vae.dtype in (dtype, torch.float32)
    # A second image finds the autoencoder in a usable state.
    assert engine.forward([sample])[0]["pixels"].isfinite().all()
