from typing import Any

import pytest

from stoker.inspection import FailureCode, InspectionError
from stoker.inspection.config import (
    ModelConfig,
    find_hints,
    find_pipeline,
    read_config,
    refuse_missing_tokenizer,
    refuse_unspeakable,
)
from stoker.inspection.files import FileSet
from stoker.models.llm.model_types import VISION
from stoker.models.tasks.registry import PIPELINES as SERVED

from .builders import PIPELINES, MemoryFiles


class TestReadConfig:
    def test_reads(self) -> None:
        document = {"architectures": ["ViTModel", "Other"], "model_type": "vit"}
        assert read_config({"config.json": document}) == ModelConfig("ViTModel", "vit")

    def test_missing(self) -> None:
        with pytest.raises(InspectionError) as caught:
            read_config({"1_Pooling/config.json": {}})
        assert caught.value.code is FailureCode.MISSING_CONFIG

    @pytest.mark.parametrize(
        "document",
        [
            [],
            "x",
            None,
            {},
            {"architectures": []},
            {"architectures": None, "model_type": "bert"},
            {"architectures": "BertModel", "model_type": "bert"},
            {"architectures": [None], "model_type": "bert"},
            {"architectures": ["os.system"], "model_type": "bert"},
            {"architectures": ["../x"], "model_type": "bert"},
            {"architectures": ["Bert Model"], "model_type": "bert"},
            {"architectures": ["BertModel\n"], "model_type": "bert"},
            {"architectures": ["B" * 129], "model_type": "bert"},
            {"architectures": ["BertModel"]},
            {"architectures": ["BertModel"], "model_type": 1},
            {"architectures": ["BertModel"], "model_type": "../x"},
            {"architectures": ["BertModel"], "model_type": ""},
        ],
    )
    def test_refuses(self, document: Any) -> None:
        with pytest.raises(InspectionError) as caught:
            read_config({"config.json": document})
        assert caught.value.code is FailureCode.BAD_CONFIG
        assert caught.value.path == "config.json"


class TestFindPipeline:
    @pytest.mark.parametrize(
        ("architecture", "pipeline"),
        [
            ("BertForTokenClassification", "token-classification"),
            ("DebertaV2ForSequenceClassification", "text-classification"),
            ("BertModel", "feature-extraction"),
            ("ViTForImageClassification", "image-classification"),
        ],
    )
    def test_finds_the_only_one(self, architecture: str, pipeline: str) -> None:
        assert find_pipeline(architecture, None, (), PIPELINES) == pipeline

    @pytest.mark.parametrize(
        ("specific", "general"),
        [
            ("*ForMaskedLM", "*"),
            ("BertForMaskedLM", "*ForMaskedLM"),
            ("*ForMaskedLM", "*For?????????[A-Z]*"),
            ("?ertForMaskedLM", "[!A]*ForMaskedLM"),
        ],
    )
    def test_prefers_the_most_specific_pattern(self, specific: str, general: str) -> None:
        for pipelines in (
            {"fill-mask": [specific], "feature-extraction": [general]},
            {"feature-extraction": [general], "fill-mask": ["Nothing", specific, "*"]},
        ):
            assert find_pipeline("BertForMaskedLM", None, (), pipelines) == "fill-mask"

    def test_hint_wins_over_specificity(self) -> None:
        pipelines = {"fill-mask": ["BertForMaskedLM"], "feature-extraction": ["*"]}
        hints = ("token-classification", "feature-extraction")
        assert find_pipeline("BertForMaskedLM", None, hints, pipelines) == "feature-extraction"

    @pytest.mark.parametrize("hint", ["feature-extraction", "fill-mask"])
    def test_hint_breaks_a_tie(self, hint: str) -> None:
        hints = ("text-generation", "unheard-of", hint, "fill-mask")
        assert find_pipeline("MPNetForMaskedLM", None, hints, PIPELINES) == hint

    @pytest.mark.parametrize("hints", [(), ("text-generation",)])
    def test_tie(self, hints: tuple[str, ...]) -> None:
        with pytest.raises(InspectionError) as caught:
            find_pipeline("MPNetForMaskedLM", None, hints, PIPELINES)
        assert caught.value.code is FailureCode.AMBIGUOUS_PIPELINE
        assert "feature-extraction, fill-mask" in caught.value.message

    def test_given_wins_over_specificity_and_hints(self) -> None:
        pipelines = {"fill-mask": ["*ForMaskedLM"], "feature-extraction": ["*"]}
        pipeline = find_pipeline("BertForMaskedLM", "feature-extraction", ("fill-mask",), pipelines)
        assert pipeline == "feature-extraction"

    def test_given_but_not_possible(self) -> None:
        with pytest.raises(InspectionError) as caught:
            find_pipeline("BertForMaskedLM", "token-classification", (), PIPELINES)
        assert caught.value.code is FailureCode.PIPELINE_MISMATCH
        assert "can serve: feature-extraction, fill-mask" in caught.value.message

    def test_given_but_unknown(self) -> None:
        with pytest.raises(InspectionError) as caught:
            find_pipeline("BertForMaskedLM", "fill\x00mask", (), PIPELINES)
        assert caught.value.code is FailureCode.UNKNOWN_PIPELINE
        assert "fill-mask" in caught.value.message
        assert caught.value.message.isprintable()

    @pytest.mark.parametrize("given", [None, "fill-mask"])
    def test_architecture_that_nothing_serves(self, given: str | None) -> None:
        with pytest.raises(InspectionError) as caught:
            find_pipeline("bertformaskedlm", given, ("fill-mask",), PIPELINES)
        assert caught.value.code is FailureCode.UNSUPPORTED_ARCHITECTURE
        assert "bertformaskedlm" in caught.value.message


class TestFindHints:
    @pytest.mark.parametrize(
        ("readme", "hints"),
        [
            ("---\npipeline_tag: fill-mask\n---\n# x", ("fill-mask",)),
            ("---\r\nlanguage: en\r\npipeline_tag: fill-mask\r\n---\r\n", ("fill-mask",)),
            ("\ufeff---\npipeline_tag: 'fill-mask' # so\ntags:\n- x\n---", ("fill-mask",)),
            ('---\npipeline_tag: "sentence-similarity"\n---', ("feature-extraction",)),
            ("---\ntags:\n  pipeline_tag: fill-mask\n---", ()),
            ("---\nx: y\n---\npipeline_tag: fill-mask\n", ()),
            ("pipeline_tag: fill-mask\n---\n", ()),
            ("---\npipeline_tag: fill-mask\n", ()),
            ("---\npipeline_tag: [fill-mask]\n---", ()),
            ("", ()),
        ],
    )
    def test_readme(self, readme: str, hints: tuple[str, ...]) -> None:
        assert find_hints(FileSet(MemoryFiles({"README.md": readme.encode()})), {}) == hints

    def test_long_readme(self) -> None:
        readme = b"---\n" + b"pipeline_tag: \n" * 1_000_000
        files = MemoryFiles({"README.md": readme})
        assert find_hints(FileSet(files), {}) == ()
        assert files.bytes_read <= 1 << 16

    def test_character_cut_at_the_limit(self) -> None:
        readme = b"---\npipeline_tag: fill-mask\n---\n".ljust((1 << 16) - 1) + "漢".encode()
        assert find_hints(FileSet(MemoryFiles({"README.md": readme})), {}) == ("fill-mask",)

    def test_modules_come_after_the_readme(self) -> None:
        files = FileSet(MemoryFiles({"README.md": b"---\npipeline_tag: fill-mask\n---\n"}))
        assert find_hints(files, {"modules.json": []}) == ("fill-mask", "feature-extraction")

    @pytest.mark.parametrize(
        ("settings", "embeds"),
        [({}, True), ({"model_type": "SentenceTransformer"}, True)]
        + [({"model_type": kind}, False) for kind in ("CrossEncoder", "SparseEncoder")],
    )
    def test_modules_of_what_embeds(self, settings: dict[str, str], embeds: bool) -> None:
        documents: dict[str, Any] = {
            "modules.json": [],
            "config_sentence_transformers.json": settings,
        }
        hints = find_hints(FileSet(MemoryFiles({})), documents)
        assert hints == (("feature-extraction",) if embeds else ())


class TestTokenizer:
    @staticmethod
    def check(pipeline: str, names: list[str], tokenizer_class: Any = None) -> None:
        files = FileSet(MemoryFiles(dict.fromkeys(names, b"{}")))
        documents = {"tokenizer_config.json": {"tokenizer_class": tokenizer_class}}
        refuse_missing_tokenizer(pipeline, files, documents if tokenizer_class else {})

    @pytest.mark.parametrize(
        "names",
        [
            ["tokenizer.json"],
            ["tekken.json"],
            ["vocab.txt"],
            ["spiece.model"],
            ["tokenizer.model"],
            ["source.spm", "target.spm"],
            ["vocab.json", "merges.txt"],
            ["vocab-src.json", "vocab-tgt.json", "merges.txt"],
        ],
    )
    def test_accepts(self, names: list[str]) -> None:
        self.check("fill-mask", names)

    @pytest.mark.parametrize(
        "names",
        [
            [],
            ["tokenizer_config.json", "special_tokens_map.json"],
            ["vocab.json"],
            ["merges.txt"],
            ["vocab-src.json", "merges.txt"],
            # Only code that is shipped with a model reads this file.
            ["qwen.tiktoken"],
            ["sub/tokenizer.json"],
            ["sub/spiece.model"],
        ],
    )
    def test_refuses(self, names: list[str]) -> None:
        with pytest.raises(InspectionError) as caught:
            self.check("fill-mask", names)
        assert caught.value.code is FailureCode.MISSING_TOKENIZER
        assert "tokenizer.json" in caught.value.message

    def test_empty_file_is_no_tokenizer(self) -> None:
        with pytest.raises(InspectionError):
            refuse_missing_tokenizer("fill-mask", FileSet(MemoryFiles({"vocab.txt": b""})), {})

    def test_tokenizers_without_a_vocabulary(self) -> None:
        self.check("fill-mask", [], "CanineTokenizer")
        for other in ("BertTokenizer", ["CanineTokenizer"], {"a": 1}):
            with pytest.raises(InspectionError):
                self.check("fill-mask", [], other)

    def test_speech_may_spell(self) -> None:
        self.check("automatic-speech-recognition", ["vocab.json"])
        with pytest.raises(InspectionError):
            self.check("automatic-speech-recognition", [])

    def test_images_need_none(self) -> None:
        self.check("image-classification", [])


class TestVisionModels:
    """Vision models are accepted by the server's own list of served architectures."""

    @pytest.mark.parametrize("architecture", sorted(VISION))
    def test_of_a_kind_that_is_served(self, architecture: str) -> None:
        assert find_pipeline(architecture, None, (), SERVED) == "image-text-to-text"

    def test_of_another_kind(self) -> None:
        with pytest.raises(InspectionError) as caught:
            find_pipeline("MllamaForConditionalGeneration", "image-text-to-text", (), SERVED)
        assert caught.value.code is FailureCode.PIPELINE_MISMATCH


class TestRefuseUnspeakable:
    WHOLE = (
        "vocoder/config.json",
        "vocoder/model.safetensors",
        "speaker_embeddings.safetensors",
    )

    @pytest.mark.parametrize(
        ("architecture", "settings", "names"),
        [
            ("VitsModel", {"tokenizer_class": "VitsTokenizer", "phonemize": False}, ()),
            ("SpeechT5ForTextToSpeech", {}, WHOLE),
            ("FastSpeech2ConformerWithHifiGan", {"tokenizer_class": "TokenizersBackend"}, ()),
            ("BertModel", {}, ()),
        ],
    )
    def test_takes(self, architecture: str, settings: Any, names: Any) -> None:
        files = FileSet(MemoryFiles(dict.fromkeys(names, b"x")))
        refuse_unspeakable(architecture, files, {"tokenizer_config.json": settings})

    @pytest.mark.parametrize(
        ("architecture", "settings", "names", "path"),
        [
            ("VitsModel", {"phonemize": True}, (), "tokenizer_config.json"),
            ("VitsModel", {}, (), "tokenizer_config.json"),
            ("VitsModel", [], (), "tokenizer_config.json"),
            ("SpeechT5ForTextToSpeech", {}, WHOLE[1:], WHOLE[1]),
            ("SpeechT5ForTextToSpeech", {}, (WHOLE[0], WHOLE[2]), WHOLE[1]),
            ("SpeechT5ForTextToSpeech", {}, WHOLE[:2], WHOLE[2]),
            (
                "FastSpeech2ConformerWithHifiGan",
                {"tokenizer_class": "FastSpeech2ConformerTokenizer"},
                (),
                "tokenizer_config.json",
            ),
        ],
    )
    def test_refuses(self, architecture: str, settings: Any, names: Any, path: str) -> None:
        files = FileSet(MemoryFiles(dict.fromkeys(names, b"x")))
        with pytest.raises(InspectionError) as caught:
            refuse_unspeakable(architecture, files, {"tokenizer_config.json": settings})
        assert (caught.value.code, caught.value.path) == (FailureCode.UNSUPPORTED_MODEL, path)


def test_the_hub_has_another_name_for_speech() -> None:
    files = FileSet(MemoryFiles({"README.md": b"---\npipeline_tag: text-to-audio\n---\n"}))
    assert find_hints(files, {}) == ("text-to-speech",)
    assert find_pipeline("VitsModel", None, (), SERVED) == "text-to-speech"
