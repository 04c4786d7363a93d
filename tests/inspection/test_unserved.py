"""Unserved architectures are refused at once with the reason, even if they match other patterns."""

from typing import Any

import pytest
import transformers

from stoker.inspection import FailureCode, InspectionError, inspect
from stoker.inspection.config import find_pipeline
from stoker.models.tasks.registry import PIPELINES

from .builders import MemoryFiles, dumps, model

PLAIN_TEXT = [
    "token-classification",
    "text-classification",
    "zero-shot-classification",
    "text-ranking",
    "fill-mask",
    "question-answering",
    "feature-extraction",
]
HEADS = [
    "Model",
    "ForMaskedLM",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
]


class TestPages:
    """Models of words on a page accept plain text without an error, but their answers are
    nonsense.
    """

    @pytest.mark.parametrize("pipeline", PLAIN_TEXT)
    @pytest.mark.parametrize("family", ["LayoutLM", "LayoutLMv3", "Lilt", "Bros"])
    def test_no_pipeline_of_texts(self, family: str, pipeline: str) -> None:
        for head in HEADS:
            for requested, hints in ((pipeline, ()), (None, (pipeline,)), (None, ())):
                try:
                    matched = find_pipeline(f"{family}{head}", requested, hints, PIPELINES)
                except InspectionError as error:
                    assert f"{family}{head}" in error.message
                else:
                    assert matched not in PLAIN_TEXT

    @pytest.mark.parametrize(
        ("architecture", "why"),
        [
            ("LayoutLMv3ForTokenClassification", "words with their positions on a page"),
            ("LiltForTokenClassification", "words with their positions on a page"),
            ("BrosForTokenClassification", "words with their positions on a page"),
            ("MarkupLMForTokenClassification", "HTML nodes"),
            ("LayoutLMv2ForTokenClassification", "detectron2"),
            ("LayoutLMv2ForQuestionAnswering", "detectron2"),
        ],
    )
    @pytest.mark.parametrize("given", [None, "token-classification"])
    def test_reason(self, architecture: str, why: str, given: str | None) -> None:
        with pytest.raises(InspectionError, match=why) as caught:
            find_pipeline(architecture, given, (), PIPELINES)
        assert caught.value.code is FailureCode.UNSUPPORTED_ARCHITECTURE
        assert architecture in caught.value.message

    def test_plain_text_goes_on(self) -> None:
        for family in ("Bert", "RobertaPreLayerNorm", "Roberta"):
            pipeline = find_pipeline(f"{family}ForTokenClassification", None, (), PIPELINES)
            assert pipeline == "token-classification"


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("BarkModel", "three models"),
        ("ParlerTTSForConditionalGeneration", "parler-tts"),
        ("PixArtAlphaPipeline", "its steps"),
        ("PixArtSigmaPipeline", "its steps"),
    ],
)
def test_known_and_not_served(architecture: str, why: str) -> None:
    """Such architectures are refused even if a general pattern, such as that of features,
    matches.
    """
    for requested in (None, "feature-extraction", "text-to-image"):
        with pytest.raises(InspectionError, match=why) as caught:
            find_pipeline(architecture, requested, (), PIPELINES)
        assert caught.value.code is FailureCode.UNSUPPORTED_ARCHITECTURE


UNSERVED: dict[str, Any] = {
    "Sam3Model": transformers.Sam3Config,
    "UdopForConditionalGeneration": transformers.UdopConfig,
    "Kosmos2ForConditionalGeneration": transformers.Kosmos2Config,
    "VisualBertForPreTraining": transformers.VisualBertConfig,
    "LxmertModel": transformers.LxmertConfig,
    "Wav2Vec2BertModel": transformers.Wav2Vec2BertConfig,
    "HubertModel": transformers.HubertConfig,
    "WhisperModel": transformers.WhisperConfig,
    "Speech2TextModel": transformers.Speech2TextConfig,
    "ASTModel": transformers.ASTConfig,
    "EncodecModel": transformers.EncodecConfig,
    "BarkModel": transformers.BarkConfig,
}


def small(configuration: Any) -> dict[str, Any]:
    """Returns a configuration without its sizes, which are those of real weights."""
    return {name: value for name, value in configuration.to_dict().items() if not _is_size(value)}


def _is_size(value: Any) -> bool:
    return isinstance(value, int | dict) and not isinstance(value, bool)


def files(architecture: str) -> MemoryFiles:
    document = UNSERVED[architecture]().to_dict() | {"architectures": [architecture]}
    return MemoryFiles(model(config_json=dumps(document)))


class TestOtherSenses:
    """Any model with a tokenizer would match `*Model` and `*For…`, the patterns of features."""

    @pytest.mark.parametrize("architecture", UNSERVED)
    def test_no_model_of_texts(self, architecture: str) -> None:
        with pytest.raises(InspectionError, match=architecture) as caught:
            inspect(files(architecture), None, PIPELINES)
        assert caught.value.code is FailureCode.UNSUPPORTED_ARCHITECTURE

    @pytest.mark.parametrize("architecture", ["HubertModel", "Wav2Vec2BertModel", "LxmertModel"])
    def test_nor_on_request(self, architecture: str) -> None:
        with pytest.raises(InspectionError, match=architecture):
            inspect(files(architecture), "feature-extraction", PIPELINES)

    def test_text_side_on_request(self) -> None:
        document = small(transformers.Qwen2VLConfig()) | {"architectures": ["Qwen2VLModel"]}
        contents = MemoryFiles(model(config_json=dumps(document)))
        inspection = inspect(contents, "feature-extraction", PIPELINES)
        assert inspection.pipeline == "feature-extraction"

    @pytest.mark.parametrize("name", ["Bert", "Mamba", "ConvBert", "Nystromformer", "T5Encoder"])
    def test_models_of_texts(self, name: str) -> None:
        configuration = getattr(transformers, f"{name.removesuffix('Encoder')}Config")()
        document = small(configuration) | {"architectures": [f"{name}Model"]}
        inspection = inspect(MemoryFiles(model(config_json=dumps(document))), None, PIPELINES)
        assert inspection.pipeline == "feature-extraction"
