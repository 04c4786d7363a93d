"""Models are refused at the push if a package is missing, and accepted if it is installed."""

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from stoker.inspection import FailureCode, InspectionError, inspect, packages
from stoker.models.tasks.registry import PIPELINES
from tests.inspection.builders import MemoryFiles, config, dumps, model, sentencepiece

ON_THE_SERVER = (
    "Install it on the server, where 'stoker doctor' shows the command. Restart the server, and "
    "upload the model again."
)
ITS_OWN = "which is not installed and is in no extra."
TIKTOKEN = b"IQ== 0\nIg== 1\n"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the set of installed packages: none except those that a test adds."""
    package_names: set[str] = set()

    def version(name: str) -> str:
        if name not in package_names:
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(packages, "version", version)
    return package_names


def with_tokenizer(
    cls: str, architecture: str = "BertForTokenClassification", **settings: Any
) -> dict[str, bytes]:
    files = model(config_json=config(architecture), tokenizer_json=None)
    settings = {"tokenizer_class": cls, **settings}
    return {**files, "vocab.txt": b"a\n", "tokenizer_config.json": dumps(settings)}


def seeing(kind: str, architecture: str, processor: str = "", **settings: Any) -> dict[str, bytes]:
    files = model(
        config_json=config(architecture, **{"model_type": kind, **settings}), tokenizer_json=None
    )
    if processor:
        files["preprocessor_config.json"] = dumps({"image_processor_type": processor})
    return files


def japanese(**mecab: Any) -> dict[str, bytes]:
    splitting = {"word_tokenizer_type": "mecab", "mecab_kwargs": mecab or None}
    return with_tokenizer("BertJapaneseTokenizer", **splitting)


def fsmt() -> dict[str, bytes]:
    files = model(
        config_json=config("FSMTForConditionalGeneration", model_type="fsmt"), tokenizer_json=None
    )
    return {**files, "vocab-src.json": b"{}", "vocab-tgt.json": b"{}", "merges.txt": b"#\n"}


def refusal(files: dict[str, bytes]) -> InspectionError:
    with pytest.raises(InspectionError) as refused:
        inspect(MemoryFiles(files), None, PIPELINES)
    return refused.value


BROUGHT = {
    "fsmt": (fsmt(), "FSMTTokenizer", ["sacremoses"], "languages"),
    "xlm": (with_tokenizer("XLMTokenizer"), "XLMTokenizer", ["sacremoses"], "languages"),
    "roformer": (
        with_tokenizer("RoFormerTokenizerFast"),
        "RoFormerTokenizer",
        ["rjieba"],
        "languages",
    ),
    "tapas": (
        with_tokenizer("TapasTokenizer", "TapasForQuestionAnswering"),
        "TapasTokenizer",
        ["pandas"],
        "tables",
    ),
    "tapas, by its kind": (
        {
            **model(tokenizer_json=None),
            "config.json": config("TapasForQuestionAnswering", model_type="tapas"),
            "vocab.txt": b"a\n",
        },
        "TapasTokenizer",
        ["pandas"],
        "tables",
    ),
    "tweets": (
        with_tokenizer("BertweetTokenizer", normalization=True),
        "BertweetTokenizer with 'normalization'",
        ["emoji"],
        "languages",
    ),
    "roman letters": (
        with_tokenizer("VitsTokenizer", "VitsModel", phonemize=False, is_uroman=True),
        "VitsTokenizer with 'is_uroman'",
        ["uroman"],
        "languages",
    ),
    "ipadic": (
        japanese(mecab_dic="ipadic"),
        "BertJapaneseTokenizer with ipadic",
        ["fugashi", "ipadic"],
        "japanese",
    ),
    "mecab's default": (
        japanese(),
        "BertJapaneseTokenizer with unidic_lite",
        ["fugashi", "unidic-lite"],
        "japanese",
    ),
    "tiktoken": (
        {**model(tokenizer_json=None), "tokenizer.model": TIKTOKEN},
        "a tiktoken tokenizer",
        ["tiktoken"],
        "languages",
    ),
}


@pytest.mark.parametrize("case", BROUGHT)
def test_an_extra_brings_it(case: str, installed: set[str]) -> None:
    files, dependent, needed, extra = BROUGHT[case]
    for package in needed:
        error = refusal(files)
        assert error.code is FailureCode.MISSING_PACKAGE
        need = f"{dependent} needs {package}, of the extra '{extra}'."
        expected = f"{error.path}: {need} {ON_THE_SERVER}"
        assert error.message == expected
        assert error.path in files
        installed.add(package)
    assert inspect(MemoryFiles(files), None, PIPELINES).warnings == ()


def detr(**backbone: Any) -> dict[str, bytes]:
    return seeing("detr", "DetrForObjectDetection", "DetrImageProcessor", **backbone)


FLASH = "Remove 'attn_implementation': the engine chooses an available one."
BACKBONE = "Save it with a backbone of transformers that 'backbone_config' describes."
NOT_BROUGHT = {
    "a backbone of timm": (
        detr(use_timm_backbone=True, backbone="resnet50"),
        f"the backbone 'resnet50' needs timm, {ITS_OWN} {BACKBONE}",
    ),
    "DETR's own backbone": (detr(), f"its backbone needs timm, {ITS_OWN} {BACKBONE}"),
    "a described backbone of timm": (
        detr(backbone_config={"model_type": "timm_backbone", "backbone": "resnet50"}),
        f"a model of the kind timm_backbone needs timm, {ITS_OWN} {BACKBONE}",
    ),
    "timm's image models": (
        seeing("timm_wrapper", "TimmWrapperForImageClassification"),
        f"a model of the kind timm_wrapper needs timm, {ITS_OWN} {BACKBONE}",
    ),
    "natten": (
        seeing("dinat", "DinatForImageClassification", "ViTImageProcessor"),
        f"a model of the kind dinat needs natten, {ITS_OWN}",
    ),
    "an image processor without Pillow": (
        seeing("dinov3_vit", "DINOv3ViTModel", "DINOv3ViTImageProcessorFast"),
        f"DINOv3ViTImageProcessor needs torchvision, {ITS_OWN}",
    ),
    "one of a processor": (
        {
            **seeing("depth_pro", "DepthProForDepthEstimation", "ViTImageProcessor"),
            "processor_config.json": dumps(
                {"image_processor": {"image_processor_type": "DepthProImageProcessor"}}
            ),
        },
        f"DepthProImageProcessor needs torchvision, {ITS_OWN}",
    ),
    "a kernel for attention": (
        {**model(), "config.json": config(attn_implementation="flash_attention_2")},
        f"attention by 'flash_attention_2' needs flash-attn, {ITS_OWN} {FLASH}",
    ),
    "quantized weights": (
        {**model(), "config.json": config(quantization_config={"quant_method": "gptq"})},
        f"quantization by gptq needs gptqmodel, {ITS_OWN} "
        "Upload the model in full or half precision.",
    ),
    "weights in eight bits": (
        {**model(), "config.json": config(quantization_config={"load_in_8bit": True})},
        f"quantization by bitsandbytes needs bitsandbytes, {ITS_OWN} "
        "Upload the model in full or half precision.",
    ),
}


@pytest.mark.parametrize("case", NOT_BROUGHT)
def test_no_extra_brings_it(case: str, installed: set[str]) -> None:
    files, expected = NOT_BROUGHT[case]
    error = refusal(files)
    assert error.code is FailureCode.MISSING_PACKAGE
    assert error.message == f"{error.path}: {expected}"
    # Models are served if the user has installed the packages.
    installed.update({"timm", "natten", "torchvision", "flash-attn", "gptqmodel", "bitsandbytes"})
    inspect(MemoryFiles(files), None, PIPELINES)


@pytest.mark.parametrize(
    "files",
    [
        detr(backbone_config={"model_type": "resnet"}, use_timm_backbone=False),
        seeing(
            "maskformer",
            "MaskFormerForInstanceSegmentation",
            "MaskFormerImageProcessorFast",
            backbone_config={"model_type": "swin"},
            # Only the decoder of this backbone is used.
            decoder_config={"backbone_config": {"model_type": "timm_backbone"}},
        ),
        with_tokenizer("BertJapaneseTokenizer"),
        with_tokenizer("BertJapaneseTokenizer", word_tokenizer_type="basic"),
        with_tokenizer("BertweetTokenizer"),
        {**model(tokenizer_json=None), "spiece.model": sentencepiece()},
        {**model(), "tokenizer.model": TIKTOKEN},
        {**model(), "config.json": config(quantization_config={"quant_method": "fp8"})},
        {**model(), "config.json": config(attn_implementation="sdpa")},
        # A text model loads no image processor, and an image model no tokenizer.
        {
            **model(),
            "preprocessor_config.json": dumps({"image_processor_type": "Sam3ImageProcessor"}),
        },
        {
            **seeing("vit", "ViTForImageClassification", "ViTImageProcessorFast"),
            "tokenizer_config.json": dumps({"tokenizer_class": "XLMTokenizer"}),
        },
        # A value that is no name is left to other checks.
        with_tokenizer("BertTokenizer", tokenizer_class=["a"], mecab_kwargs="b"),
        {**model(), "config.json": config(backbone_config=[1], quantization_config="c")},
    ],
)
def test_nothing_is_needed(files: dict[str, bytes]) -> None:
    assert inspect(MemoryFiles(files), None, PIPELINES).warnings == ()


def test_quantized_language_models_are_left_to_vllm() -> None:
    settings = {"quantization_config": {"quant_method": "awq"}, "model_type": "llama"}
    files = {**model(), "config.json": config("LlamaForCausalLM", **settings)}
    inspection = inspect(MemoryFiles(files), None, PIPELINES)
    assert inspection.engines == ("vllm",)
    assert inspection.warnings == (
        "config.json: quantization by awq needs gptqmodel, which is not installed. Only the engine "
        "'vllm' can load it.",
    )


@pytest.mark.parametrize(
    "files",
    [
        japanese(mecab_dic="ipadic", mecab_option="-o /tmp/words"),
        japanese(mecab_dic="unidic"),
        japanese(mecab_dic=None),
        with_tokenizer("BertJapaneseTokenizer", word_tokenizer_type="sudachi"),
        with_tokenizer("BertJapaneseTokenizer", word_tokenizer_type="jumanpp"),
    ],
)
def test_japanese_words_in_other_ways(files: dict[str, bytes], installed: set[str]) -> None:
    installed.update({"fugashi", "ipadic", "unidic-lite", "unidic", "sudachipy", "rhoknp"})
    error = refusal(files)
    assert error.code is FailureCode.UNSUPPORTED_MODEL
    assert "the 'mecab_dic' ipadic or unidic_lite" in error.message


def test_a_backbone_of_the_hub() -> None:
    error = refusal(detr(use_timm_backbone=False, backbone="microsoft/resnet-50"))
    assert error.code is FailureCode.UNSUPPORTED_MODEL
    assert error.message == (
        f"config.json needs 'microsoft/resnet-50' from the hub, but nothing is fetched from there. "
        f"{BACKBONE}"
    )


@pytest.mark.parametrize("cls", ["BertJapaneseTokenizer", "CanineTokenizer", "PhobertTokenizer"])
def test_answers_are_not_found_without_places(cls: str) -> None:
    error = refusal(with_tokenizer(cls, "BertForQuestionAnswering"))
    assert error.code is FailureCode.UNSUPPORTED_MODEL
    assert f"names {cls}, which does not report the positions of tokens in a text" in error.message
