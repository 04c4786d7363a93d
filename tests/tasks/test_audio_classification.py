"""Audio classification against the transformers pipeline, family by family."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.audio_classification import AudioClassificationRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import sound, wav
from tests.support.recognition import BERT

RATE = 16_000
SOUNDS = [sound(0, 0.4), sound(1, 0.25), sound(2, 0.25)]


def ast(folder: Path) -> None:
    config = transformers.ASTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_mel_bins=32,
        max_length=64,
        num_labels=7,
    )
    transformers.ASTForAudioClassification(config).save_pretrained(folder)
    transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=64).save_pretrained(folder)


def wav2vec2(folder: Path) -> None:
    _wav2vec2(folder, norm="group", mask=False)


def wav2vec2_layer(folder: Path) -> None:
    _wav2vec2(folder, norm="layer", mask=True, problem_type="multi_label_classification")


def _wav2vec2(folder: Path, *, norm: str, mask: bool, **more: Any) -> None:
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_kernel=(10, 8, 4),
        conv_stride=(5, 8, 4),
        feat_extract_norm=norm,
        do_stable_layer_norm=norm == "layer",
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        num_labels=7,
        **more,
    )
    transformers.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=mask)
    extractor.save_pretrained(folder)


def wav2vec2_bert(folder: Path) -> None:
    config = transformers.Wav2Vec2BertConfig(**BERT, num_hidden_layers=2, num_labels=7)
    transformers.Wav2Vec2BertForSequenceClassification(config).save_pretrained(folder)
    transformers.SeamlessM4TFeatureExtractor(padding_value=1).save_pretrained(folder)


FAMILIES = [ast, wav2vec2, wav2vec2_layer, wav2vec2_bert]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("audio-classification", folder)
    yield local, transformers.pipeline("audio-classification", model=str(folder), device="cpu")
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for samples in SOUNDS:
            equal(local.ask({"inputs": samples.tolist()}), pipe(samples, top_k=5))

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        bodies = [{"inputs": [samples.tolist() for samples in SOUNDS]}] * 3
        local.batches.clear()
        for answer in local.ask_together(bodies):
            equal(answer, [pipe(samples, top_k=5) for samples in SOUNDS])
        assert max(local.batches) > 1

    def test_forms_of_a_recording(self, case: Any) -> None:
        local, pipe = case
        samples = SOUNDS[0]
        rated = {"sampling_rate": RATE}
        forms = [
            {"array": samples.tolist(), **rated},
            # A row of a data set. The file is not opened.
            {"path": "/no/such.wav", "array": samples.tolist(), **rated},
            {"raw": samples.tolist(), **rated},
            Media("audio", content=wav(samples)),
        ]
        for form in forms:
            equal(local.ask({"inputs": form}), pipe(samples, top_k=5))

    def test_another_rate_is_resampled(self, case: Any) -> None:
        local, _ = case
        halved = SOUNDS[0][::2].tolist()
        answer = local.ask({"inputs": {"array": halved, "sampling_rate": RATE // 2}})
        filed = local.ask({"inputs": Media("audio", content=wav(SOUNDS[0][::2], RATE // 2))})
        equal(answer, filed)
        with pytest.raises(AssertionError):
            equal(answer, local.ask({"inputs": halved}))

    @pytest.mark.parametrize(
        "parameters",
        [
            {"top_k": 1},
            {"top_k": 1000},
            {"function_to_apply": "sigmoid"},
            {"function_to_apply": "softmax"},
            {"function_to_apply": "none"},
        ],
        ids=str,
    )
    def test_parameters(self, case: Any, parameters: dict[str, Any]) -> None:
        local, pipe = case
        answer = local.ask({"inputs": SOUNDS[0].tolist(), **parameters})
        equal(answer, pipe(SOUNDS[0], **{"top_k": 5} | parameters))

    def test_probe(self, case: Any) -> None:
        local, _ = case
        assert len(local.forward([local.stages.probe(32)] * 2)) == 2


class TestRefusals:
    @pytest.mark.parametrize(
        "bad",
        [
            Media("audio", content=b"no sound at all"),
            Media("audio", content=b""),
            [0.1, math.nan, 0.2] * 400,
            [0.1, math.inf, 0.2] * 400,
        ],
        ids=["not audio", "empty", "nan", "infinite"],
    )
    def test_not_a_recording(self, case: Any, bad: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"inputs": [SOUNDS[0].tolist(), bad]})
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "inputs[1]"

    def test_too_short(self, case: Any) -> None:
        local, _ = case
        for samples in (1, 100, 399):
            with pytest.raises(RefusedError, match="this model needs at least"):
                local.ask({"inputs": [0.1] * samples})
        assert len(local.ask({"inputs": SOUNDS[0][:560].tolist()})) == 5

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"inputs": []},
            {"inputs": {"array": [0.1], "sampling_rate": 0}},
            {"inputs": {"array": "abc", "sampling_rate": RATE}},
            {"inputs": {"path": "/no/such.wav", "sampling_rate": RATE}},
            {"inputs": {"path": "/no/such.wav", "url": "https://a.example/b.wav"}},
            {"inputs": [0.1], "top_k": 0},
            {"inputs": [0.1], "top_k": 1001},
            {"inputs": [0.1], "function_to_apply": "tanh"},
            {"inputs": [0.1], "colour": "red"},
        ],
        ids=str,
    )
    def test_request(self, body: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            AudioClassificationRequest.model_validate(body)
