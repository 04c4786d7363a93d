"""V-JEPA 2 against the model called directly on frames that the test prepares."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy
import pytest
import torch
import transformers
from PIL import Image

from stoker.media.media import Media
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import video

SIDE, FRAMES = 28, 4
CLIPS = [video(0), video(1, 30, (32, 64)), video(2, 9, (16, 16))]
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def vjepa2(folder: Path) -> None:
    config = transformers.VJEPA2Config(
        patch_size=7,
        crop_size=SIDE,
        frames_per_clip=FRAMES,
        tubelet_size=2,
        hidden_size=48,
        num_attention_heads=2,
        num_hidden_layers=2,
        mlp_ratio=2,
        pred_hidden_size=24,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=1,
        num_pooler_layers=1,
        initializer_range=0.2,
        num_labels=7,
    )
    transformers.VJEPA2ForVideoClassification(config).save_pretrained(folder)
    settings = {
        "video_processor_type": "VJEPA2VideoProcessor",
        "crop_size": {"height": SIDE, "width": SIDE},
        "size": {"shortest_edge": 999},
        "image_mean": MEAN,
        "image_std": STD,
        "do_convert_rgb": True,
        "return_metadata": False,
    }
    folder.joinpath("video_preprocessor_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def case(tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp("vjepa2")
    transformers.set_seed(0)
    vjepa2(folder)
    local = Local("video-classification", folder)
    yield local, transformers.VJEPA2ForVideoClassification.from_pretrained(folder).eval()
    local.close()


def prepared(frame: Any) -> Any:
    """Returns the pixels of a frame with shape (3, SIDE, SIDE)."""
    picture = Image.fromarray(frame)
    shorter = SIDE * 256 // 224
    scale = shorter / min(picture.size)
    size = (int(picture.width * scale), int(picture.height * scale))
    picture = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = (picture.width - SIDE) // 2, (picture.height - SIDE) // 2
    picture = picture.crop((left, top, left + SIDE, top + SIDE))
    pixels = numpy.asarray(picture, numpy.float32) / 255
    normalised = (pixels - numpy.array(MEAN, numpy.float32)) / numpy.array(STD, numpy.float32)
    return normalised.transpose(2, 0, 1)


def direct(model: Any, clip: bytes, indices: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Returns the scores of the frames at `indices`, best first."""
    path = folder / "clip.mp4"
    path.write_bytes(clip)
    with av.open(str(path)) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    pixels = numpy.stack([prepared(frames[index]) for index in indices])[None]
    with torch.inference_mode():
        scores = model(pixel_values_videos=torch.from_numpy(pixels)).logits[0].softmax(-1)
    best = scores.argsort(descending=True)[:5].tolist()
    return [{"label": f"LABEL_{i}", "score": scores[i].item()} for i in best]


INDICES = [[0, 3, 6, 9], [0, 7, 15, 22], [0, 2, 4, 6]]


def test_alone(case: Any, tmp_path: Path) -> None:
    local, model = case
    for clip, indices in zip(CLIPS, INDICES, strict=True):
        answer = local.ask({"inputs": Media("video", content=clip)})
        equal(answer, direct(model, clip, indices, tmp_path))


def test_together(case: Any, tmp_path: Path) -> None:
    local, model = case
    expected = [
        direct(model, *arguments, tmp_path) for arguments in zip(CLIPS, INDICES, strict=True)
    ]
    inputs = [Media("video", content=clip) for clip in CLIPS]
    local.batches.clear()
    for answer in local.ask_together([{"inputs": inputs}] * 2):
        equal(answer, expected)
    assert max(local.batches) > 1


def test_from_the_start(case: Any, tmp_path: Path) -> None:
    local, model = case
    answer = local.ask({"inputs": Media("video", content=CLIPS[1]), "frame_sampling_rate": 2})
    expected = direct(model, CLIPS[1], [0, 2, 4, 7], tmp_path)
    equal(answer, expected)


def test_other_number_of_frames(case: Any) -> None:
    local, _ = case
    with pytest.raises(RefusedError, match="takes 4 frames, not 6") as refused:
        local.ask({"inputs": Media("video", content=CLIPS[0]), "num_frames": 6})
    assert refused.value.failure.param == "num_frames"


def test_probe(case: Any) -> None:
    local, _ = case
    assert len(local.forward([local.stages.probe(32)] * 2)) == 2
