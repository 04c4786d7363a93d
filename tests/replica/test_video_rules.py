"""Sizes and numbers of frames, for the configurations that the families publish."""

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch

from stoker.replica.stages import InputError
from stoker.replica.video_rules import Rules, Shape, check_amount, rules_of
from stoker.tasks.video_request import VideoSpec

NO_TEXT = {"tokenizer": None, "text_encoder": None, "scheduler": None}


def _wan(**options: Any) -> Any:
    """The defaults of the classes are Wan 2.1's."""
    vae = diffusers.AutoencoderKLWan(**options.pop("vae", {}))
    transformer = diffusers.WanTransformer3DModel(num_layers=1)
    return diffusers.WanPipeline(vae=vae, transformer=transformer, **NO_TEXT, **options)


def _ltx() -> Any:
    vae = diffusers.AutoencoderKLLTXVideo()
    transformer = diffusers.LTXVideoTransformer3DModel(num_layers=1)
    return diffusers.LTXPipeline(vae=vae, transformer=transformer, **NO_TEXT)


def _cogvideox(kind: Any = diffusers.CogVideoXPipeline, **options: Any) -> Any:
    vae = diffusers.AutoencoderKLCogVideoX()
    transformer = diffusers.CogVideoXTransformer3DModel(num_layers=1, **options)
    return kind(vae=vae, transformer=transformer, **NO_TEXT)


MADE: dict[str, Callable[[], Any]] = {
    "wan-2.1": _wan,
    # Its VAE compresses 16 times in space.
    "wan-2.2-5b": lambda: _wan(vae={"scale_factor_spatial": 16}, expand_timesteps=True),
    "ltx": _ltx,
    "cogvideox-2b": _cogvideox,
    "cogvideox-5b-image": lambda: _cogvideox(
        diffusers.CogVideoXImageToVideoPipeline,
        in_channels=32,
        use_rotary_positional_embeddings=True,
        use_learned_positional_embeddings=True,
    ),
    "cogvideox-1.5": lambda: _cogvideox(
        patch_size_t=2,
        sample_width=300,
        sample_height=300,
        sample_frames=81,
        use_rotary_positional_embeddings=True,
    ),
}


@pytest.fixture(scope="module")
def rules() -> dict[str, Rules]:
    with torch.device("meta"):
        return {name: rules_of(make()) for name, make in MADE.items()}


def refused(rules: Rules, **spec: Any) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        rules.shape(VideoSpec(**spec))
    assert not caught.value.of_item
    return caught.value.field, caught.value.message


@pytest.mark.parametrize(
    ("family", "own", "multiple"),
    [
        ("wan-2.1", (832, 480, 81, 16), 16),
        ("wan-2.2-5b", (1280, 704, 121, 24), 32),
        ("ltx", (704, 512, 161, 25), 32),
        ("cogvideox-2b", (720, 480, 49, 8), 16),
        ("cogvideox-5b-image", (720, 480, 49, 8), 16),
        ("cogvideox-1.5", (1360, 768, 81, 16), 16),
    ],
)
def test_own_shape(
    rules: dict[str, Rules], family: str, own: tuple[int, ...], multiple: int
) -> None:
    shape = rules[family].shape(VideoSpec())
    assert (shape.width, shape.height, shape.frames, shape.fps) == own
    assert rules[family].multiple == (multiple, multiple)
    # It is one that may be asked for, too.
    spec = VideoSpec(width=own[0], height=own[1], num_frames=own[2], fps=own[3])
    assert rules[family].shape(spec) == shape


@pytest.mark.parametrize(
    ("family", "spec", "frames"),
    [
        ("wan-2.1", {"seconds": 5}, 81),
        ("wan-2.1", {"seconds": 4}, 65),
        ("wan-2.1", {"seconds": 4, "fps": 24}, 97),
        ("wan-2.1", {"seconds": 0.01}, 1),
        ("wan-2.1", {"num_frames": 6}, 5),
        ("wan-2.1", {"num_frames": 7}, 9),
        ("wan-2.1", {"num_frames": 8, "seconds": 9}, 9),
        ("wan-2.2-5b", {"seconds": 5}, 121),
        ("ltx", {"seconds": 4}, 97),
        ("ltx", {"seconds": 4, "fps": 30}, 121),
        ("ltx", {"num_frames": 4}, 1),
        ("ltx", {"num_frames": 5}, 9),
        ("ltx", {"num_frames": 16}, 17),
        ("cogvideox-2b", {"seconds": 6}, 49),
        ("cogvideox-2b", {"seconds": 4}, 33),
        ("cogvideox-2b", {"num_frames": 4}, 1),
        ("cogvideox-2b", {"num_frames": 45}, 49),
        ("cogvideox-1.5", {"seconds": 5}, 81),
        ("cogvideox-1.5", {"num_frames": 20}, 17),
        ("cogvideox-5b-image", {"seconds": 6}, 49),
    ],
)
def test_nearest_number_of_frames(
    rules: dict[str, Rules], family: str, spec: dict[str, Any], frames: int
) -> None:
    assert rules[family].shape(VideoSpec(**spec)).frames == frames


@pytest.mark.parametrize(
    ("family", "size", "nearest"),
    [
        ("wan-2.1", (1920, 1080), "1920x1072 or 1920x1088"),
        ("wan-2.2-5b", (720, 1280), "704x1280 or 736x1280"),
        ("ltx", (720, 1280), "704x1280 or 736x1280"),
        ("ltx", (30, 16), "32x32"),
        ("cogvideox-2b", (1000, 1000), "992x992 or 1008x1008"),
        ("cogvideox-1.5", (3000, 768), "2400x768"),
    ],
)
def test_other_sizes_are_refused_with_the_nearest(
    rules: dict[str, Rules], family: str, size: tuple[int, int], nearest: str
) -> None:
    field, message = refused(rules[family], width=size[0], height=size[1])
    assert field == "size"
    assert f"not {size[0]}x{size[1]}. Nearest: {nearest}." in message


def test_refusals_name_the_field(rules: dict[str, Rules]) -> None:
    assert refused(rules["wan-2.1"], width=480)[0] == "size"
    field, message = refused(rules["wan-2.1"], seconds=100)
    assert field == "seconds" and "1025 frames" in message
    field, message = refused(rules["cogvideox-5b-image"], width=480, height=720)
    assert field == "size" and "720x480 only" in message
    field, message = refused(rules["cogvideox-5b-image"], num_frames=41)
    assert field == "num_frames" and "49 frames only: 6.125 seconds" in message
    with pytest.raises(InputError) as caught:
        check_amount(Shape(width=2048, height=2048, frames=81, fps=16))
    assert caught.value.field == "seconds"
