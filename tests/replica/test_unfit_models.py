"""Models that load but cannot answer fail with a message, not with a null answer."""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import transformers

from stoker.models.engines import sharing
from stoker.models.engines.completeness import UnfitWeightsError
from stoker.replica.failures import load_failure
from tests.support.loading import shared
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert, tiny_vit
from tests.tasks.test_zero_shot_image_classification import align


def configured(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def damaged(folder: Path, name: str, value: float) -> Path:
    """Sets one weight of the model to the value, such as NaN. Returns the folder."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors[name].view(-1)[0] = value
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return folder


class TestShapes:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}},
                r"classifier\.weight has the shape \[3, 32\] .* \[2, 32\].*'id2label'",
            ),
            (
                {"vocab_size": 77},
                r"word_embeddings\.weight has the shape \[\d+, 32\] .* \[77, 32\].*'vocab_size'",
            ),
            (
                {"max_position_embeddings": 64},
                r"position_embeddings\.weight .*128, 32.*64, 32.*'max_position_embeddings'",
            ),
            ({"intermediate_size": 48}, r"intermediate\.dense\.bias .*64.*48.*and \d+ more"),
        ],
    )
    def test_are_named_and_not_tried_again(
        self, tmp_path: Path, changes: dict[str, Any], words: str
    ) -> None:
        folder = configured(tiny_bert(tmp_path, "ForSequenceClassification"), **changes)
        with pytest.raises(UnfitWeightsError, match=words) as caught:
            shared("text-classification", folder)
        failed = load_failure(caught.value, str(folder))
        assert failed.lasting
        assert "report" not in failed.message
        assert str(folder) not in failed.message


class TestMissingFiles:
    def test_of_a_processor(self, tmp_path: Path) -> None:
        tiny_vit(tmp_path)
        (tmp_path / "preprocessor_config.json").unlink()
        with pytest.raises(OSError, match="image processor") as caught:
            shared("image-classification", tmp_path)
        failed = load_failure(caught.value, str(tmp_path))
        assert failed.lasting
        assert failed.message == (
            "OSError: the model's folder has no preprocessor_config.json, which its image "
            "processor is loaded from. Upload it with the model."
        )

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (
                "AutoFeatureExtractor",
                "has no preprocessor_config.json, which its feature extractor",
            ),
            ("AutoModel", "has no model.safetensors"),
        ],
    )
    def test_of_transformers(self, tmp_path: Path, kind: str, words: str) -> None:
        transformers.BertConfig().save_pretrained(tmp_path)
        library: Any = transformers
        with pytest.raises(OSError) as caught:
            getattr(library, kind).from_pretrained(str(tmp_path), local_files_only=True)
        failed = load_failure(caught.value, str(tmp_path))
        assert failed.lasting
        assert words in failed.message
        assert "huggingface.co" not in failed.message

    def test_of_another_repository(self) -> None:
        message = (
            "acme/backbone is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'"
        )
        failed = load_failure(OSError(message))
        assert failed.lasting
        assert "refer to acme/backbone" in failed.message

    def test_paths(self) -> None:
        folder = "/srv/data/models/x"
        error = PermissionError(13, "Permission denied", "/opt/env/lib/timm/models.py")
        assert load_failure(error, folder).message.endswith("denied …/lib/timm/models.py.")
        error = OSError(f"cannot read {folder}/sub/model.safetensors: 5 and/or 6")
        assert load_failure(error, folder).message == (
            "OSError: cannot read sub/model.safetensors: 5 and/or 6."
        )
        error = OSError("load it from 'https://hub.example/models', see file:///etc/passwd")
        assert load_failure(error, folder).message == (
            "OSError: load it from '…/models', see …/passwd."
        )


class TestNoNumbers:
    NAMES = {
        "text-classification": "classifier.bias",
        "token-classification": "bert.encoder.layer.0.output.dense.bias",
        "feature-extraction": "encoder.layer.1.output.dense.bias",
        "fill-mask": "cls.predictions.transform.dense.bias",
    }
    HEADS = {
        "text-classification": "ForSequenceClassification",
        "token-classification": "ForTokenClassification",
        "feature-extraction": "Model",
        "fill-mask": "ForMaskedLM",
    }

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("pipeline", NAMES)
    def test_of_weights(self, tmp_path: Path, pipeline: str, value: float) -> None:
        folder = tiny_bert(tmp_path, self.HEADS[pipeline])
        assert shared(pipeline, folder)
        damaged(folder, self.NAMES[pipeline], value)
        body = {"inputs": "the [MASK]"}
        # Replicas measured the model before, so they do not test it again.
        refused = pytest.raises(RefusedError, match=r"not a number \(NaN or infinity\)")
        with closing(Local(pipeline, folder)) as local, refused as caught:
            local.ask(body)
        assert caught.value.failure.code == "inference_failed"
        if math.isnan(value) or pipeline != "text-classification":
            with pytest.raises(sharing.ModelUnfitError, match="returns NaN") as unfit:
                shared(pipeline, folder)
            assert load_failure(unfit.value).lasting

    def test_of_embeddings_as_base64(self, tmp_path: Path) -> None:
        folder = damaged(
            tiny_bert(tmp_path, "Model"), "encoder.layer.1.output.dense.bias", math.nan
        )
        with closing(Local("feature-extraction", folder)) as local:
            for task, body in (
                ("embeddings", {"input": "a", "encoding_format": "base64"}),
                ("rerank", {"query": "a", "documents": ["b"]}),
                ("similarity", {"source_sentence": "a", "sentences": ["b"]}),
            ):
                with pytest.raises(RefusedError, match="not a number"):
                    local.ask(body, task)

    def test_an_answer_of_numbers_passes(self, tmp_path: Path) -> None:
        with closing(Local("feature-extraction", tiny_bert(tmp_path, "Model"))) as local:
            assert local.ask({"input": ["a", "b"], "encoding_format": "base64"}, "embeddings")


def test_towers_of_different_widths(tmp_path: Path) -> None:
    """transformers builds such a model, which then fails on the first image."""
    align(tmp_path, projection=32)
    with pytest.raises(ValueError, match=r"text vectors have 32 numbers, .* vectors 24\."):
        shared("zero-shot-image-classification", tmp_path)
    align(tmp_path, projection=24)
    assert shared("zero-shot-image-classification", tmp_path)
