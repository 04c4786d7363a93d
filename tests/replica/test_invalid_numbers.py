"""A model that computes NaN gets an error, also where a task makes a valid-looking answer of it: no
boxes, a mask, an empty text.
"""

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from stoker.models.engines.invalid_numbers import is_invalid, outputs_with_nan
from stoker.models.engines.sharing import ModelUnfitError
from stoker.models.llm.interface import Logprob, Output
from stoker.models.stages.base import INVALID, Sample
from stoker.models.stages.score_check import ScoreCheck
from stoker.replica import language_worker
from tests.support import multimodal
from tests.support.loading import shared
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media, sound
from tests.support.recognition import moonshine, wav2vec2, whisper
from tests.support.seq2seq import bart
from tests.tasks import (
    test_depth_estimation,
    test_image_segmentation,
    test_mask_generation,
    test_object_detection,
    test_speech_recognition,
    test_zero_shot_object_detection,
)

IMAGE = image_media(image(0))
TEXT = "the tower is in paris."
DETECTOR = test_object_detection.yolos

Family = Callable[[Path], Any]


def spoiled(family: Family, folder: Path) -> Path:
    """Saves a model with a NaN in each of its tensors. Returns the folder."""
    transformers.set_seed(0)
    family(folder)
    for path in folder.rglob("*.safetensors"):
        tensors = safetensors.torch.load_file(path)
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor.view(-1)[0] = math.nan
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("pipeline", "family", "body"),
    [
        ("object-detection", DETECTOR, {"inputs": IMAGE}),
        ("object-detection", DETECTOR, {"inputs": [IMAGE, IMAGE]}),
        (
            "zero-shot-object-detection",
            test_zero_shot_object_detection.owlvit,
            {"image": IMAGE, "candidate_labels": ["one"]},
        ),
        ("depth-estimation", test_depth_estimation.dpt, {"inputs": IMAGE}),
        ("image-segmentation", test_image_segmentation.segformer, {"inputs": IMAGE}),
        ("mask-generation", test_mask_generation.sam, {"inputs": IMAGE, "points_per_crop": 4}),
        ("summarization", bart, {"inputs": TEXT}),
        ("summarization", bart, {"inputs": TEXT, "do_sample": True, "seed": 1}),
        ("summarization", bart, {"inputs": TEXT, "num_beams": 2}),
        ("image-to-text", multimodal.vit_gpt2, {"inputs": IMAGE}),
    ],
)
def test_an_answer_of_nan_is_refused(
    tmp_path: Path, pipeline: str, family: Family, body: dict[str, Any]
) -> None:
    refused = pytest.raises(RefusedError, match=r"not a number \(NaN or infinity\)")
    with closing(Local(pipeline, spoiled(family, tmp_path))) as local, refused as caught:
        local.ask(body)
    assert caught.value.failure.code == "inference_failed"


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        (wav2vec2, {}),
        (wav2vec2, {"stream": True}),
        (whisper, {}),
        (whisper, {"stream": True}),
        (whisper, {"temperature": 0.5}),
        (moonshine, {}),
        (moonshine, {"temperature": 0.5}),
    ],
)
def test_a_transcript_of_nan_is_refused(
    tmp_path: Path, family: Family, fields: dict[str, Any]
) -> None:
    call = test_speech_recognition.call(sound(0, 0.4), **fields)
    local = Local("automatic-speech-recognition", spoiled(family, tmp_path))
    with closing(local), pytest.raises(RefusedError, match="not a number"):
        local.answers([call])


@pytest.mark.parametrize(("pipeline", "family"), [("summarization", bart)])
def test_it_is_not_loaded(tmp_path: Path, pipeline: str, family: Family) -> None:
    with pytest.raises(ModelUnfitError, match="returns NaN in scores"):
        shared(pipeline, spoiled(family, tmp_path))


class TestOutputs:
    SAMPLE = Sample({"pixels": torch.tensor([math.nan])}, {"size": torch.tensor([math.inf])})

    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            ({"logits": torch.tensor([1.0, math.nan])}, True),
            ({"logits": torch.tensor([1.0, math.inf])}, True),
            ({"logits": torch.tensor([1.0, -math.inf])}, False),
            ({"logits": torch.zeros(0)}, False),
            # Deformable DETR gives places at an image's border infinite boxes.
            ({"enc_outputs_coord_logits": torch.tensor([math.inf])}, False),
            ({"tokens": torch.tensor([1, 2]), "name": "a", "none": None}, False),
            ({"tokens": torch.tensor([1]), INVALID: torch.tensor([True])}, True),
            ({"tokens": torch.tensor([1]), INVALID: torch.tensor([False])}, False),
            (SAMPLE.features | SAMPLE.extras, False),
        ],
    )
    def test_are_checked_except_inputs(self, output: dict[str, Any], expected: bool) -> None:
        assert is_invalid(self.SAMPLE, output) is expected

    def test_are_named(self) -> None:
        output = {"boxes": torch.tensor([math.nan]), INVALID: torch.tensor([True])}
        assert outputs_with_nan(self.SAMPLE, output) == ["boxes", "scores"]


class TestScores:
    def test_a_row_stays_marked_and_can_be_drawn_from(self) -> None:
        check, ids = ScoreCheck(), torch.zeros(2, 1, dtype=torch.int64)
        checked = check(ids, torch.tensor([[0.0, math.nan], [1.0, -math.inf]]))
        assert checked.tolist() == [[0.0, 0.0], [1.0, -math.inf]]
        valid = torch.ones(2, 2)
        assert check(ids, valid) is valid, "scores are copied only if they change"
        assert check.invalid(ids).tolist() == [True, False]

    def test_a_sequence_has_the_rows_of_its_beams(self) -> None:
        check, ids = ScoreCheck(), torch.zeros(4, 1, dtype=torch.int64)
        check(ids, torch.tensor([[0.0], [math.inf], [1.0], [2.0]]))
        assert check.invalid(ids[:2]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Output(1, [3], []), False),
        (Output(1, [3], [Logprob(3, -0.5)]), False),
        (Output(1, [3], [Logprob(3, math.nan)]), True),
        (Output(1, [], [], prompt=[Logprob(3, -1.0), Logprob(4, math.nan)]), True),
        (Output(1, [], [], end=Logprob(3, math.nan)), True),
    ],
)
def test_log_probabilities(output: Output, expected: bool) -> None:
    assert language_worker._has_nan(output) is expected
