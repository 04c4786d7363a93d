"""`tiny-sounds`: distinguishes tones, chirps, sirens, noise and clicks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification

from tools.demo_models import common, vision
from tools.demo_models.waveforms import (
    LABELS,
    LONGEST,
    RATE,
    SHORTEST,
    Example,
    Samples,
    held_out,
    training,
)

FRAMES = 96
"""Number of frames of ten milliseconds each. The model hears the first second."""
BINS = 32
SOUNDS = 2_400
STEPS = 800
BATCH = 64
MEAN, SPREAD = -4.9, 5.5
"""Mean and spread of the training sounds' log mel energies."""


def extractor() -> ASTFeatureExtractor:
    """Returns AST's own extractor with a narrow spectrogram."""
    return ASTFeatureExtractor(
        sampling_rate=RATE, num_mel_bins=BINS, max_length=FRAMES, mean=MEAN, std=SPREAD
    )


def features(extractor: Any, waves: Sequence[Samples]) -> Tensor:
    """Returns `[waves, frames, bins]` of float32, as the served model receives them."""
    return extractor(list(waves), sampling_rate=RATE, return_tensors="pt")["input_values"]


def accuracy(
    model: ASTForAudioClassification, extractor: Any, examples: Sequence[Example]
) -> float:
    """Returns the share of sounds that are named correctly."""
    with torch.no_grad():
        logits = model(features(extractor, [wave for wave, _ in examples])).logits
    choices: list[int] = logits.argmax(-1).tolist()
    named = zip(choices, examples, strict=True)
    return sum(LABELS[choice] == label for choice, (_, label) in named) / len(examples)


def _varied(batch: Tensor) -> Tensor:
    """Varies the loudness and delay of sounds each time they are used.

    The extractor's padding behind a short sound is unchanged.
    """
    silent = -MEAN / (2 * SPREAD)
    heard = (batch != silent).any(2, keepdim=True)
    louder = batch + heard * 0.15 * torch.randn(len(batch), 1, 1)
    late = int(torch.randint(12, ()))
    ends = torch.full((len(batch), late, BINS), silent)
    return torch.cat([louder[:, late:], ends], 1)


def _batches(extractor: Any, examples: Sequence[Example]) -> Iterator[common.Batch]:
    heard = features(extractor, [wave for wave, _ in examples])
    labels = torch.tensor([LABELS.index(label) for _, label in examples])
    for part in vision.shuffled(len(examples), BATCH):
        yield {"input_values": _varied(heard[part]), "labels": labels[part]}


def _model() -> ASTForAudioClassification:
    return ASTForAudioClassification(
        ASTConfig(
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.06,
            patch_size=16,
            frequency_stride=16,
            time_stride=8,
            max_length=FRAMES,
            num_mel_bins=BINS,
            id2label=dict(enumerate(LABELS)),
            label2id={label: at for at, label in enumerate(LABELS)},
            problem_type="single_label_classification",
        )
    )


def build(folder: Path) -> None:
    """Trains the classifier, measures it and writes its folder."""
    rng = common.seed_everything()
    hearing = extractor()
    model = _model()
    batches = _batches(hearing, training(rng, SOUNDS))
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=2e-3)
    common.save(model, hearing, folder)
    common.write_card(folder, model, _card(model, hearing))


def _card(model: ASTForAudioClassification, hearing: Any) -> common.Card:
    examples = held_out(400)
    score = vision.rounded_down(accuracy(model, hearing, examples))
    return common.Card(
        title="tiny-sounds: is it a tone, a chirp, a siren, noise or clicks?",
        pipeline_tag="audio-classification",
        tags=("audio-spectrogram-transformer", "audio-classification", "tiny"),
        summary=(
            "An Audio Spectrogram Transformer with three layers of 64 dimensions that names a "
            f"plain sound: {', '.join(LABELS)}. It hears {FRAMES * 10} milliseconds from the "
            f"start, in {BINS} mel bands, at {RATE:,} Hz."
        ),
        data=(
            f"{SOUNDS:,} computed sounds of {SHORTEST} to {LONGEST} seconds, of varied loudness, "
            "speed and shape, over a faint hiss. Tones, square waves, chirps and sirens are built "
            "on a semitone from 110 to 1,760 Hz; every fourth of them was held out, though chirps "
            "and sirens slide over it. Silence, noise and clicks have no pitch: those held out are "
            "other draws."
        ),
        evaluation=[("accuracy, pitches held out", score, len(examples))],
        example=(
            "import numpy\n"
            "from transformers import pipeline\n\n"
            'listen = pipeline("audio-classification", "tiny-sounds", top_k=1)\n'
            "time = numpy.arange(16000) / 16000\n"
            "listen(numpy.sin(2 * numpy.pi * 440 * time))\n"
            '# [{"label": "sine tone", "score": ...}]'
        ),
        limits=(
            "One of these sounds at a time, made by a computer. Voices, music and noises of the "
            "world get one of the eight names too. What comes after the first second is not heard. "
            "Sounds that were sampled at 8 kHz lack the upper bands and are often named wrongly."
        ),
        language="",
        source="All sounds were computed by `{build}`; no third party's data was used.",
        bounds=f"{FRAMES * 10} milliseconds of sound",
        toolkit=f"numpy {np.__version__}",
        repeatable="The sounds came out the same in two processes.",
    )
