"""Sizes and numbers of frames for the published configurations of the families."""

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from stoker.models.diffusion.video.configs import CALLS, COMPONENTS
from stoker.models.diffusion.video.rules import VideoRules, VideoShape, check_amount, rules_of
from stoker.models.stages.base import InputError
from stoker.wire.video_request import VideoSpec

NO_TEXT = {"tokenizer": None, "text_encoder": None, "scheduler": None}


def _wan(**options: Any) -> Any:
    """Builds a Wan pipeline. The defaults of the classes are those of Wan 2.1."""
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
    # The VAE compresses 16 times in space.
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
def pipes() -> dict[str, Any]:
    with torch.device("meta"):
        return {name: make() for name, make in MADE.items()}


def read(folder: Path) -> VideoRules:
    return rules_of(lambda path: (folder / path).read_bytes())


def configured(pipe: Any, folder: Path) -> Path:
    """Saves a pipeline's configuration without its weights. Returns the folder."""
    pipe.save_config(folder)
    for name in ("transformer", "vae"):
        getattr(pipe, name).save_config(folder / name)
    return folder


@pytest.fixture(scope="module")
def folders(pipes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("configs")
    return {name: configured(pipe, root / name) for name, pipe in pipes.items()}


@pytest.fixture(scope="module")
def rules(folders: dict[str, Path]) -> dict[str, VideoRules]:
    return {name: read(folder) for name, folder in folders.items()}


def refused(rules: VideoRules, **spec: Any) -> tuple[str, str]:
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
    rules: dict[str, VideoRules], family: str, own: tuple[int, ...], multiple: int
) -> None:
    shape = rules[family].shape(VideoSpec())
    assert (shape.width, shape.height, shape.frames, shape.fps) == own
    assert rules[family].multiple == (multiple, multiple)
    # A request may also name this shape explicitly.
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
    rules: dict[str, VideoRules], family: str, spec: dict[str, Any], frames: int
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
    rules: dict[str, VideoRules], family: str, size: tuple[int, int], nearest: str
) -> None:
    field, message = refused(rules[family], width=size[0], height=size[1])
    assert field == "size"
    assert f"cannot make videos of {size[0]}x{size[1]}." in message
    assert message.endswith(f"Nearest: {nearest}.")


@pytest.mark.parametrize("family", MADE)
def test_as_the_loaded_pipeline(
    pipes: dict[str, Any], rules: dict[str, VideoRules], family: str
) -> None:
    """The rules match the values that diffusers computes from the loaded model."""
    pipe, derived = pipes[family], rules[family]
    config = pipe.transformer.config
    if family.startswith("ltx"):
        spatial = pipe.vae_spatial_compression_ratio * pipe.transformer_spatial_patch_size
        temporal = pipe.vae_temporal_compression_ratio * pipe.transformer_temporal_patch_size
    elif family.startswith("wan"):
        spatial = pipe.vae_scale_factor_spatial * config.patch_size[1]
        temporal = pipe.vae_scale_factor_temporal
    else:
        spatial = pipe.vae_scale_factor_spatial * config.patch_size
        temporal = 2 * pipe.vae_scale_factor_temporal
        sample = config.sample_width * pipe.vae_scale_factor_spatial
        assert derived.own.width in (sample, 1360)
    assert (derived.multiple[0] % spatial, derived.multiple[1] % spatial) == (0, 0)
    assert derived.multiple[0] == math.lcm({"ltx": 32}.get(family, 8), spatial)
    assert derived.frame_step == temporal


@pytest.mark.parametrize("family", ["wan-2.1", "ltx", "cogvideox-2b"])
def test_settings_that_a_file_leaves_out(
    folders: dict[str, Path], rules: dict[str, VideoRules], family: str, tmp_path: Path
) -> None:
    """Missing settings have the library's defaults. Files of earlier releases name fewer
    settings.
    """
    index = json.loads((folders[family] / "model_index.json").read_bytes())
    shortened = {name: index[name] for name in ("_class_name", "transformer", "vae")}
    (tmp_path / "model_index.json").write_text(json.dumps(shortened))
    for name in ("transformer", "vae"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert read(tmp_path) == rules[family]


def test_defaults_are_the_librarys() -> None:
    library: Any = diffusers
    for name, settings in COMPONENTS.items():
        parameters = inspect.signature(getattr(library, name).__init__).parameters
        assert {setting: parameters[setting].default for setting in settings} == settings, name
    for name, settings in CALLS.items():
        parameters = inspect.signature(getattr(library, name).__call__).parameters
        assert {setting: parameters[setting].default for setting in settings} == settings, name


def test_first_transformer_that_there_is(folders: dict[str, Path], tmp_path: Path) -> None:
    """The second transformer is used if it is the only one, as is possible for Wan 2.2."""
    index = json.loads((folders["wan-2.1"] / "model_index.json").read_bytes())
    moved = index | {"transformer": [None, None], "transformer_2": index["transformer"]}
    (tmp_path / "model_index.json").write_text(json.dumps(moved))
    for name, target in (("transformer", "transformer_2"), ("vae", "vae")):
        config = folders["wan-2.1"] / name / "config.json"
        (tmp_path / target).mkdir()
        (tmp_path / target / "config.json").write_bytes(config.read_bytes())
    assert read(tmp_path) == read(folders["wan-2.1"])


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"_class_name": "FluxPipeline"}', b"\xff"], ids=repr
)
def test_what_is_no_configuration(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model_index.json").write_bytes(content)
    with pytest.raises((KeyError, ValueError)):
        read(tmp_path)


def test_refusals_name_the_field(rules: dict[str, VideoRules]) -> None:
    assert refused(rules["wan-2.1"], width=480)[0] == "size"
    field, message = refused(rules["wan-2.1"], seconds=100)
    assert field == "seconds" and "1025 frames" in message
    field, message = refused(rules["cogvideox-5b-image"], width=480, height=720)
    assert field == "size" and "720x480 only" in message
    field, message = refused(rules["cogvideox-5b-image"], num_frames=41)
    assert field == "num_frames" and "49 frames only: 6.125 seconds" in message
    with pytest.raises(InputError) as caught:
        check_amount(VideoShape(width=2048, height=2048, frames=81, fps=16))
    assert caught.value.field == "seconds"
