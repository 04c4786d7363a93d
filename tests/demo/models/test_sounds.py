"""Tests of `tiny-sounds` as packaged."""

import numpy as np
import pytest
from transformers import AutoFeatureExtractor, AutoModelForAudioClassification, pipeline

from stoker.demo.setup import MODELS as SHIPPED
from stoker.media.media import Media
from tests.demo.models.folders import check
from tests.support.local import Local
from tests.support.media import wav
from tools.demo_models import sounds
from tools.demo_models.waveforms import LABELS, RATE, held_out

FOLDER = SHIPPED / "tiny-sounds"


def test_folder() -> None:
    check("tiny-sounds", "audio-classification")


@pytest.fixture(scope="module")
def model():
    return AutoModelForAudioClassification.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def extractor():
    return AutoFeatureExtractor.from_pretrained(FOLDER, local_files_only=True)


class TestHeldOut:
    def test_draws_the_same_again(self) -> None:
        for (wave, label), (again, same) in zip(held_out(5), held_out(5), strict=True):
            assert np.array_equal(wave, again)
            assert label == same

    def test_draws_sounds(self) -> None:
        examples = held_out(60)
        assert {label for _, label in examples} == set(LABELS)
        assert all(wave.dtype == np.float32 and abs(wave).max() <= 1 for wave, _ in examples)
        assert all(0.6 * RATE <= len(wave) <= 1.4 * RATE for wave, _ in examples)


class TestModel:
    def test_names_its_labels(self, model) -> None:
        assert tuple(model.config.id2label.values()) == LABELS

    def test_names_sounds_of_unheard_pitches(self, model, extractor) -> None:
        assert sounds.accuracy(model, extractor, held_out(160)) >= 0.95

    @pytest.mark.parametrize("seconds", [0.5, 1, 3])
    @pytest.mark.parametrize("pitch", [110, 440, 1760])
    def test_names_a_tone_without_hiss(self, model, extractor, pitch, seconds) -> None:
        listen = pipeline("audio-classification", model=model, feature_extractor=extractor)
        tone = 0.5 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * RATE)) / RATE)
        assert listen(tone.astype(np.float32))[0]["label"] == "sine tone"

    def test_names_silence(self, model, extractor) -> None:
        listen = pipeline("audio-classification", model=model, feature_extractor=extractor)
        assert listen(np.zeros(RATE, np.float32))[0]["label"] == "silence"


def test_the_service_names_files() -> None:
    local = Local("audio-classification", FOLDER)
    examples = held_out(40, seed=7)
    files = [Media("audio", content=wav(wave)) for wave, _ in examples]
    answers = local.ask({"inputs": files, "top_k": 1})
    local.close()
    right = [
        answer[0]["label"] == label for answer, (_, label) in zip(answers, examples, strict=True)
    ]
    assert np.mean(right) >= 0.95
