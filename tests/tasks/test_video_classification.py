"""Video classification against the transformers pipeline and the model called directly."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.video_classification import VideoClassificationRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import video

SIZE, FRAMES = 16, 4
CLIPS = [video(0), video(1, 30, (32, 64)), video(2, 9, (16, 16))]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": SIZE,
    "patch_size": 8,
    "num_frames": FRAMES,
    "num_labels": 7,
}


def videomae(folder: Path) -> None:
    config = transformers.VideoMAEConfig(**SMALL)
    transformers.VideoMAEForVideoClassification(config).save_pretrained(folder)
    _processor(folder)


def timesformer(folder: Path) -> None:
    config = transformers.TimesformerConfig(**SMALL)
    transformers.TimesformerForVideoClassification(config).save_pretrained(folder)
    _processor(folder)


def vivit(folder: Path) -> None:
    sizes = {name: value for name, value in SMALL.items() if name != "patch_size"}
    config = transformers.VivitConfig(**sizes, tubelet_size=[2, 8, 8])
    transformers.VivitForVideoClassification(config).save_pretrained(folder)
    transformers.VivitImageProcessor(
        size={"shortest_edge": SIZE + 2}, crop_size={"height": SIZE, "width": SIZE}
    ).save_pretrained(folder)


def _processor(folder: Path) -> None:
    size = {"height": SIZE, "width": SIZE}
    transformers.VideoMAEImageProcessorPil(
        size={"shortest_edge": SIZE}, crop_size=size
    ).save_pretrained(folder)


@pytest.fixture(
    scope="module", params=[videomae, timesformer, vivit], ids=lambda builder: builder.__name__
)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("video-classification", folder)
    yield local, transformers.pipeline("video-classification", model=str(folder), device="cpu")
    local.close()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: Any) -> list[str]:
    folder = tmp_path_factory.mktemp("clips")
    saved_paths: list[str] = []
    for index, clip in enumerate(CLIPS):
        path = folder / f"{index}.mp4"
        path.write_bytes(clip)
        saved_paths.append(str(path))
    return saved_paths


def media(clip: bytes) -> Media:
    return Media("video", content=clip)


def direct(pipe: Any, path: str, indices: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the scores of the frames at `indices`, best first."""
    with av.open(path) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    features = pipe.image_processor([frames[i] for i in indices], return_tensors="pt")
    with torch.inference_mode():
        scores = pipe.model(**features).logits[0].softmax(-1)
    best = scores.argsort(descending=True)[:5].tolist()
    return [{"label": f"LABEL_{i}", "score": scores[i].item()} for i in best]


class TestParity:
    def test_from_the_start(self, case: Any, paths: list[str]) -> None:
        local, pipe = case
        for clip, path in zip(CLIPS, paths, strict=True):
            for rate in (1, 2):
                answer = local.ask({"inputs": media(clip), "frame_sampling_rate": rate})
                equal(answer, pipe(path, frame_sampling_rate=rate))

    def test_over_the_whole_clip(self, case: Any, paths: list[str]) -> None:
        local, pipe = case
        answers = [local.ask({"inputs": media(clip)}) for clip in CLIPS]
        equal(answers[0], direct(pipe, paths[0], [0, 3, 6, 9]))
        equal(answers[1], direct(pipe, paths[1], [0, 7, 15, 22]))
        equal(answers[2], direct(pipe, paths[2], [0, 2, 4, 6]))

    def test_a_clip_too_short_repeats_frames(self, case: Any, paths: list[str]) -> None:
        local, pipe = case
        answer = local.ask({"inputs": media(CLIPS[0]), "frame_sampling_rate": 5})
        equal(answer, direct(pipe, paths[0], [0, 6, 11, 11]))

    def test_in_a_mixed_batch(self, case: Any, paths: list[str]) -> None:
        local, pipe = case
        bodies = [{"inputs": [media(clip) for clip in CLIPS], "frame_sampling_rate": 2}] * 3
        local.batches.clear()
        for answer in local.ask_together(bodies):
            equal(answer, [pipe(path, frame_sampling_rate=2) for path in paths])
        assert max(local.batches) > 1

    @pytest.mark.parametrize(
        "parameters",
        [
            {"top_k": 1},
            {"top_k": 1000},
            {"num_frames": FRAMES},
            {"function_to_apply": "sigmoid"},
            {"function_to_apply": "none"},
        ],
        ids=str,
    )
    def test_parameters(self, case: Any, paths: list[str], parameters: dict[str, Any]) -> None:
        local, pipe = case
        options = {"frame_sampling_rate": 2, **parameters}
        equal(local.ask({"inputs": media(CLIPS[0]), **options}), pipe(paths[0], **options))

    def test_other_number_of_frames(self, case: Any, paths: list[str]) -> None:
        local, pipe = case
        body = {"inputs": media(CLIPS[0]), "num_frames": 6}
        if local.model.config.model_type == "timesformer":
            equal(local.ask(body), direct(pipe, paths[0], [0, 2, 4, 6, 8, 10]))
        else:
            with pytest.raises(RefusedError, match="takes 4 frames, not 6") as refused:
                local.ask(body)
            assert refused.value.failure.param == "num_frames"

    def test_probe(self, case: Any) -> None:
        local, _ = case
        assert len(local.forward([local.stages.probe(32)] * 2)) == 2


class TestRefusals:
    @pytest.mark.parametrize("bad", [b"no video", b"", video(0, 0)], ids=["not", "empty", "none"])
    def test_not_a_video(self, case: Any, bad: bytes) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"inputs": [media(CLIPS[0]), media(bad)]})
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "inputs[1]"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"inputs": []},
            {"inputs": 7},
            {"inputs": "x", "num_frames": 0},
            {"inputs": "x", "num_frames": 513},
            {"inputs": "x", "frame_sampling_rate": 0},
            {"inputs": "x", "frame_sampling_rate": 1001},
            {"inputs": "x", "top_k": 0},
            {"inputs": "x", "function_to_apply": "tanh"},
            {"inputs": "x", "fps": 2},
        ],
        ids=str,
    )
    def test_request(self, body: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            VideoClassificationRequest.model_validate(body)
