"""Zero-shot audio classification against the transformers pipeline."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.zero_shot_audio_classification import ZeroShotAudioClassificationRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import sound, wav
from tests.support.models import word_tokenizer

PIPELINE = "zero-shot-audio-classification"
RATE = 8000
SOUNDS = [sound(0, 0.4, RATE), sound(1, 0.25, RATE), sound(2, 1.5, RATE)]
"""Sounds that are shorter and longer than the model's input of one second."""
LABELS = ["dog", "a very small bird", "rain"]
POSITIONS = 40


@pytest.fixture(scope="module", params=["rand_trunc", "fusion"])
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    transformers.set_seed(0)
    clap(folder, request.param)
    local = Local(PIPELINE, folder)
    yield local, transformers.pipeline(PIPELINE, model=str(folder), device="cpu")
    local.close()


def clap(folder: Path, truncation: str) -> None:
    tokenizer = word_tokenizer()
    text = transformers.ClapTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        projection_dim=16,
    )
    audio = transformers.ClapAudioConfig(
        spec_size=64,
        patch_embeds_hidden_size=16,
        depths=[1, 1],
        num_attention_heads=[2, 2],
        num_hidden_layers=2,
        hidden_size=32,
        projection_dim=16,
        enable_fusion=truncation == "fusion",
    )
    config = transformers.ClapConfig(
        text_config=text.to_dict(), audio_config=audio.to_dict(), projection_dim=16
    )
    transformers.ClapModel(config).save_pretrained(folder)
    transformers.ClapFeatureExtractor(
        sampling_rate=RATE,
        hop_length=160,
        max_length_s=1,
        fft_window_size=512,
        frequency_max=4000,
        truncation=truncation,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def expected(pipe: Any, samples: numpy.ndarray, **parameters: Any) -> Any:
    """Returns the pipeline's answer. Its random crops use the same seed as ours."""
    numpy.random.seed(0)
    return pipe(samples, **{"candidate_labels": LABELS} | parameters)


def body(samples: numpy.ndarray, **parameters: Any) -> dict[str, Any]:
    return {"audio": samples.tolist(), "candidate_labels": LABELS, **parameters}


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for samples in SOUNDS:
            equal(local.ask(body(samples)), expected(pipe, samples))

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        bodies = [
            {"audio": [samples.tolist() for samples in SOUNDS], "candidate_labels": labels}
            for labels in (LABELS, LABELS[::-1], ["wind", "some thunder far away", "rain", "dog"])
        ]
        local.batches.clear()
        answers = local.ask_together(bodies)
        for request, answer in zip(bodies, answers, strict=True):
            labels = request["candidate_labels"]
            theirs = [expected(pipe, samples, candidate_labels=labels) for samples in SOUNDS]
            equal(answer, theirs)
        assert max(local.batches) > 1

    def test_of_a_long_recording_the_same_part_is_heard_every_time(self, case: Any) -> None:
        local, _ = case
        answers = [local.ask(body(SOUNDS[2])) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]

    def test_the_global_generator_goes_on_as_before(self, case: Any) -> None:
        local, _ = case
        numpy.random.seed(7)
        undisturbed = numpy.random.random(3).tolist()
        numpy.random.seed(7)
        local.ask(body(SOUNDS[2]))
        assert numpy.random.random(3).tolist() == undisturbed

    def test_template(self, case: Any) -> None:
        local, pipe = case
        template = "I hear {}"
        equal(
            local.ask(body(SOUNDS[0], hypothesis_template=template)),
            expected(pipe, SOUNDS[0], hypothesis_template=template),
        )

    def test_template_with_other_braces(self, case: Any) -> None:
        local, pipe = case
        equal(
            local.ask(body(SOUNDS[0], hypothesis_template="{0} {} {name}")),
            expected(pipe, SOUNDS[0], hypothesis_template="{{0}} {} {{name}}"),
        )

    def test_forms(self, case: Any) -> None:
        local, pipe = case
        theirs = expected(pipe, SOUNDS[0])
        media = Media("audio", content=wav(SOUNDS[0], RATE))
        equal(local.ask({"audio": media, "candidate_labels": ",".join(LABELS)}), theirs)
        hub = {"inputs": media, "parameters": {"candidate_labels": LABELS}}
        equal(local.ask(hub), theirs)

    def test_probe(self, case: Any) -> None:
        local, _ = case
        assert len(local.forward([local.stages.probe(32)] * 2)) == 2


class TestRefusals:
    @pytest.mark.parametrize(
        "bad", [Media("audio", content=b"no sound"), [0.1, math.nan]], ids=["not audio", "nan"]
    )
    def test_not_a_recording(self, case: Any, bad: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"audio": [SOUNDS[0].tolist(), bad], "candidate_labels": LABELS})
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "audio[1]"

    def test_label_too_long(self, case: Any) -> None:
        local, _ = case
        most = POSITIONS - 1
        with pytest.raises(RefusedError, match=f"at most {most}") as refused:
            local.ask(body(SOUNDS[0], candidate_labels=["a " * most], hypothesis_template="{}"))
        assert refused.value.failure.param == "candidate_labels"
        # A label that fits may fill all positions. Two tokens are special tokens.
        local.ask(body(SOUNDS[0], candidate_labels=["a " * (most - 2)], hypothesis_template="{}"))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"audio": None},
            {"audio": []},
            {"candidate_labels": None},
            {"candidate_labels": []},
            {"candidate_labels": [""]},
            {"candidate_labels": ["x"] * 1001},
            {"hypothesis_template": "a sound"},
            {"hypothesis_template": "a sound of {0}"},
            {"top_k": 3},
        ],
        ids=lambda wrong: str(wrong)[:40],
    )
    def test_request(self, wrong: dict[str, Any]) -> None:
        fields = {"audio": [0.1], "candidate_labels": LABELS} | wrong
        fields = {name: value for name, value in fields.items() if value is not None}
        with pytest.raises(ValidationError):
            ZeroShotAudioClassificationRequest.model_validate(fields)
