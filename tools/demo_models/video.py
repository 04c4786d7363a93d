"""`tiny-video`: predicts the direction in which a shape in a clip moves, or that it grows or
shrinks.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import torch
from torch import Tensor
from transformers import (
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    VideoMAEImageProcessorPil,
)

from stoker.base.media_limits import MediaLimits
from stoker.media import video
from tools.demo_models import common, vision
from tools.demo_models.motion import FRAMES, LABELS, Clip, Example, encode, held_out, training
from tools.demo_models.shapes import COLOURS, KINDS

SIZE = 32
CLIPS = 3_000
STEPS = 1_700
BATCH = 96

LEFT, RIGHT, UP, DOWN, GROWING, SHRINKING, STILL = range(len(LABELS))
_MIRRORED = torch.tensor([RIGHT, LEFT, UP, DOWN, GROWING, SHRINKING, STILL])
_TIPPED = torch.tensor([UP, DOWN, LEFT, RIGHT, GROWING, SHRINKING, STILL])
_REVERSED = torch.tensor([RIGHT, LEFT, DOWN, UP, SHRINKING, GROWING, STILL])


def pixels(processor: Any, clips: Sequence[Clip]) -> Tensor:
    """Returns `[clips, frames, 3, height, width]` of float32, as the served model receives them."""
    return processor([list(clip) for clip in clips], return_tensors="pt")["pixel_values"]


def sampled(clip: Clip) -> Clip:
    """Returns the model's input frames, spread over the clip as in stoker/media/video.py."""
    return [clip[at * len(clip) // FRAMES] for at in range(FRAMES)]


def through_a_file(clip: Clip) -> Any:
    """Returns the model's input frames after the clip was written to an MP4 file and read again."""
    data = encode(clip)
    return video.decode(data, num_frames=FRAMES, frame_sampling_rate=None, limits=MediaLimits())


def accuracy(
    model: VideoMAEForVideoClassification, processor: Any, examples: Sequence[Example]
) -> float:
    """Returns the share of clips of eight frames that are named correctly."""
    with torch.no_grad():
        logits = model(pixels(processor, [clip for clip, _ in examples])).logits
    choices: list[int] = logits.argmax(-1).tolist()
    named = zip(choices, examples, strict=True)
    return sum(LABELS[choice] == label for choice, (_, label) in named) / len(examples)


def _varied(clips: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mirrors, transposes, reverses and varies clips, with their new labels."""
    mirrored, tipped, backwards = torch.rand(3) < 0.5
    if mirrored:
        clips, labels = clips.flip(4), _MIRRORED[labels]
    if tipped:
        clips, labels = clips.transpose(3, 4), _TIPPED[labels]
    if backwards:
        clips, labels = clips.flip(1), _REVERSED[labels]
    frames: Any = vision.shaken(clips.flatten(1, 2), 0.02)
    return frames.unflatten(1, (FRAMES, 3)), labels


def _batches(processor: Any, examples: Sequence[Example]) -> Iterator[common.Batch]:
    clips = pixels(processor, [clip for clip, _ in examples])
    labels = torch.tensor([LABELS.index(label) for _, label in examples])
    for part in vision.shuffled(len(examples), BATCH):
        augmented, shown = _varied(clips[part], labels[part])
        yield {"pixel_values": augmented, "labels": shown}


def _model() -> VideoMAEForVideoClassification:
    return VideoMAEForVideoClassification(
        VideoMAEConfig(
            image_size=SIZE,
            patch_size=8,
            num_frames=FRAMES,
            # Each token covers one place over the whole time, so that it contains changes.
            tubelet_size=FRAMES,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.06,
            id2label=dict(enumerate(LABELS)),
            label2id={label: at for at, label in enumerate(LABELS)},
            problem_type="single_label_classification",
        )
    )


def build(folder: Path) -> None:
    """Trains the classifier, measures it and writes its folder."""
    rng = common.seed_everything()
    processor = vision.processor(SIZE, VideoMAEImageProcessorPil, do_center_crop=False)
    model = _model()
    batches = _batches(processor, training(rng, CLIPS))
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=2e-3)
    common.save(model, processor, folder)
    common.write_card(folder, model, _card(model, processor))


def _card(model: VideoMAEForVideoClassification, processor: Any) -> common.Card:
    examples = held_out(210)
    plain = [(sampled(clip), label) for clip, label in examples]
    filed = [(through_a_file(clip), label) for clip, label in examples]
    measured = {
        "accuracy, clips as MP4 files (H.264)": filed,
        "accuracy, the same clips before encoding": plain,
    }
    return common.Card(
        title="tiny-video: where does the shape move?",
        pipeline_tag="video-classification",
        tags=("videomae", "shapes", "video-classification", "tiny"),
        summary=(
            "A VideoMAE with three layers of 64 dimensions that tells what the one shape in a "
            f"clip does: {', '.join(LABELS)}. It looks at {FRAMES} frames spread over the clip, "
            f"which the image processor brings to {SIZE} by {SIZE} pixels."
        ),
        data=(
            f"{CLIPS:,} clips of {FRAMES} frames of 64 by 64 pixels with one shape: "
            f"{', '.join(KINDS)}, {', '.join(COLOURS)}, of any place, varied size and a turn of up "
            "to 25 degrees, on a pale or dark greyish ground that is flat, shaded, striped or "
            "checked, under grain; each frame went through a JPEG of varied quality. The clips are "
            "mirrored, tipped over and played backwards as well, with the names that fit then. "
            "Held out are shapes in colours that they never have in training, one of the "
            f"{len(COLOURS)} for each kind."
        ),
        evaluation=[
            (measurement, vision.rounded_down(accuracy(model, processor, each)), len(each))
            for measurement, each in measured.items()
        ],
        example=(
            "from transformers import pipeline\n\n"
            'watch = pipeline("video-classification", "tiny-video")\n'
            'watch("clip.mp4", frame_sampling_rate=3, top_k=1)\n'
            '# [{"label": "moving left", "score": ...}]'
        ),
        limits=(
            "One shape that goes straight, across or along, by 0.4 of the picture or more. It "
            "does not know slanted ways, several shapes, a moving camera or real footage, and has "
            "a name for them all the same."
        ),
        **vision.CARD
        | {
            "bounds": f"{FRAMES} frames of {SIZE} by {SIZE} pixels",
            "source": "All clips were drawn by `{build}`; no third party's data was used.",
            "toolkit": f"{vision.CARD['toolkit']}, PyAV {av.__version__}",
            "repeatable": "The clips came out the same in two processes.",
        },
    )
