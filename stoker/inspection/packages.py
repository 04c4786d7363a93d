"""Rejects models at upload that could never load because a package is not installed here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from stoker.inspection.config import CONFIG, SPEECH_PIPELINES, TEXT_PIPELINES
from stoker.inspection.diffusers_model import MODEL_INDEX, Component
from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet
from stoker.inspection.recognise import FileKind, recognise
from stoker.inspection.requirements import (
    BY_MODEL_TYPE,
    DICTIONARIES,
    EXTRAS,
    MODELS,
    NEEDS_TORCHVISION,
    QUANTIZED,
    SCHEDULERS,
    TIMM_BY_DEFAULT,
    TOKENIZERS,
    WITHOUT_PLACES,
)
from stoker.models.llm.model_types import TEXT_GENERATION

TOKENIZER_CONFIG = "tokenizer_config.json"
PREPROCESSOR_CONFIG = "preprocessor_config.json"
PROCESSOR_CONFIG = "processor_config.json"
DOCUMENTS = frozenset({CONFIG, TOKENIZER_CONFIG, PREPROCESSOR_CONFIG, PROCESSOR_CONFIG})
"""Files that this module reads."""

_TOKENIZER = "tokenizer.json"
_EXTRACTING = "question-answering"
# Words in the names of pipelines that accept images.
_SEEING = ("image", "object", "depth", "mask-generation", "video", "visual", "document")
_OWN_BACKBONE = "Save it with a backbone of transformers that 'backbone_config' describes."


@dataclass(frozen=True)
class RequiredPackage:
    """Package that a part of a model needs.

    Attributes:
        who: the part that needs it, as in `FSMTTokenizer`.
        package: its name on the package index.
        path: the file that shows the need.
        instead: the alternative if none of our extras installs it.
    """

    who: str
    package: str
    path: str
    instead: str = ""

    @property
    def missing(self) -> bool:
        return not is_installed(self.package)

    def error(self) -> InspectionError:
        extra = next((name for name, packages in EXTRAS.items() if self.package in packages), None)
        if extra is None:
            need = f"{self.package}, which is not installed and is in no extra. {self.instead}"
        else:
            # The command would show tenants the server's folders.
            need = (
                f"{self.package}, of the extra '{extra}'. Install it on the server, where 'stoker "
                "doctor' shows the command. Restart the server, and upload the model again."
            )
        message = f"{self.path}: {self.who} needs {need}".rstrip()
        return InspectionError(FailureCode.MISSING_PACKAGE, message, self.path)


def is_installed(package: str) -> bool:
    """True if the package with this index name is installed in this environment."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def is_seeing(pipeline: str) -> bool:
    """True if a pipeline's models accept images."""
    return any(word in pipeline for word in _SEEING)


def refuse_missing_packages(
    pipeline: str, files: FileSet, documents: Mapping[str, Json]
) -> tuple[str, ...]:
    """Rejects a model with classes that need a package that is not installed here.

    Args:
        pipeline: the pipeline that the model will serve.
        documents: the existing parsed JSON files of `DOCUMENTS`, by path.

    Returns:
        Warnings: parts that only an engine with a separate environment may load.

    Raises:
        InspectionError: `MISSING_PACKAGE`, `UNSUPPORTED_MODEL`.
    """
    config = _object(documents.get(CONFIG))
    _refuse_missing(_of_model(config))
    if is_seeing(pipeline):
        _refuse_missing(_of_images(config, documents))
    if pipeline in TEXT_PIPELINES | SPEECH_PIPELINES:
        settings = _object(documents.get(TOKENIZER_CONFIG))
        path, cls = _tokenizer_class(config, settings)
        _refuse_missing(_of_tokenizer(cls, path, settings))
        _refuse_missing(_of_files(files))
        if pipeline == _EXTRACTING and cls in WITHOUT_PLACES:
            raise _unfit(
                path,
                f"names {cls}, which does not report the positions of tokens in a text, so no "
                "answer could be located. Save the model with a tokenizer.json.",
            )
    quantized = [need for need in _of_weights(config) if need.missing]
    if pipeline != TEXT_GENERATION:
        _refuse_missing(quantized)
    return tuple(
        f"{need.path}: {need.who} needs {need.package}, which is not installed. "
        "Only the engine 'vllm' can load it."
        for need in quantized
    )


def refuse_components(components: Iterable[Component]) -> None:
    """Rejects components of a diffusers pipeline that could never load here.

    Raises:
        InspectionError: `MISSING_PACKAGE`, `UNSUPPORTED_MODEL`.
    """
    for component in components:
        cls = component.cls
        if cls in SCHEDULERS:
            raise _unfit(
                MODEL_INDEX,
                f"names {cls}, which draws its noise without the request's seed. Save the "
                "pipeline with another scheduler, such as DPMSolverMultistepScheduler "
                "with the algorithm_type 'sde-dpmsolver++'.",
            )
        if cls.endswith("ImageProcessorFast"):
            plain = cls.removesuffix("Fast")
            instead = f"Use {plain} instead, which also reads images with Pillow."
            _refuse_missing([RequiredPackage(cls, "torchvision", MODEL_INDEX, instead)])
        if package := TOKENIZERS.get(cls):
            _refuse_missing([RequiredPackage(cls, package, MODEL_INDEX)])


def _refuse_missing(needs: Iterable[RequiredPackage]) -> None:
    for need in needs:
        if need.missing:
            raise need.error()


def _of_model(config: Mapping[str, Json]) -> Iterator[RequiredPackage]:
    """Yields the needs of the model's own class and its backbone."""
    vision, encoder = _object(config.get("vision_config")), _object(config.get("encoder"))
    for part in (config, vision, encoder):
        backbone = _object(part.get("backbone_config"))
        for kind in (_text(part, "model_type"), _text(backbone, "model_type")):
            if package := MODELS.get(kind):
                instead = _OWN_BACKBONE if package == "timm" else ""
                yield RequiredPackage(f"a model of the kind {kind}", package, CONFIG, instead)
        yield from _of_backbone(part)
    kernel = _text(config, "attn_implementation") or _text(config, "_attn_implementation")
    if kernel.startswith("flash_attention"):
        instead = "Remove 'attn_implementation': the engine chooses an available one."
        yield RequiredPackage(f"attention by {quoted(kernel)}", "flash-attn", CONFIG, instead)


def _of_backbone(config: Mapping[str, Json]) -> Iterator[RequiredPackage]:
    """Yields the needs of a backbone that is only named. A described backbone is checked by
    itself.
    """
    kind, name = _text(config, "model_type"), _text(config, "backbone")
    if config.get("backbone_config") is not None or kind in MODELS:
        return
    by_default = kind in TIMM_BY_DEFAULT
    if config.get("use_timm_backbone", by_default) and (name or by_default):
        subject = f"the backbone {quoted(name)}" if name else "its backbone"
        yield RequiredPackage(subject, "timm", CONFIG, _OWN_BACKBONE)
    elif "use_timm_backbone" in config and name:
        raise _unfit(
            CONFIG,
            f"needs {quoted(name)} from the hub, but nothing is fetched from there. "
            f"{_OWN_BACKBONE}",
        )


def _of_images(
    config: Mapping[str, Json], documents: Mapping[str, Json]
) -> Iterator[RequiredPackage]:
    """Yields the needs of the image processor. processor_config.json takes precedence, as in
    loading.
    """
    nested = _object(_object(documents.get(PROCESSOR_CONFIG)).get("image_processor"))
    preprocessor = _object(documents.get(PREPROCESSOR_CONFIG))
    path, settings = (PROCESSOR_CONFIG, nested) if nested else (PREPROCESSOR_CONFIG, preprocessor)
    name = _text(settings, "image_processor_type") or _text(config, "image_processor_type")
    cls = name.removesuffix("Fast")
    if cls in NEEDS_TORCHVISION:
        yield RequiredPackage(cls, "torchvision", path if settings else CONFIG)


def _tokenizer_class(config: Mapping[str, Json], settings: Mapping[str, Json]) -> tuple[str, str]:
    """Returns the file that names the class, and the class. The name is empty if the library
    chooses the class.
    """
    if name := _text(settings, "tokenizer_class"):
        return TOKENIZER_CONFIG, name.removesuffix("Fast")
    name = _text(config, "tokenizer_class").removesuffix("Fast")
    return CONFIG, name or BY_MODEL_TYPE.get(_text(config, "model_type"), "")


def _of_tokenizer(cls: str, path: str, settings: Mapping[str, Json]) -> Iterator[RequiredPackage]:
    """Yields the needs of the tokenizer's class with its settings."""
    if package := TOKENIZERS.get(cls):
        yield RequiredPackage(cls, package, path)
    elif cls == "BertJapaneseTokenizer":
        yield from _of_japanese(settings)
    elif cls == "BertweetTokenizer" and settings.get("normalization"):
        # It would silently keep the emoji that the model has never seen.
        yield RequiredPackage(f"{cls} with 'normalization'", "emoji", path)
    elif cls == "VitsTokenizer" and settings.get("is_uroman"):
        # It would silently leave out all letters that are not Roman.
        yield RequiredPackage(f"{cls} with 'is_uroman'", "uroman", path)


def _of_files(files: FileSet) -> Iterator[RequiredPackage]:
    """Yields the needs of the tokenizer's files if tokenizer.json is missing."""
    if _TOKENIZER in files:
        return
    for path in sorted(files.sizes):
        # A SentencePiece model is not text.
        is_model = "/" not in path and path.endswith(".model")
        if is_model and recognise(files, path) is FileKind.TEXT:
            yield RequiredPackage("a tiktoken tokenizer", "tiktoken", path)


def _of_japanese(settings: Mapping[str, Json]) -> Iterator[RequiredPackage]:
    """Yields the needs of the word splitter. The default is BERT's own method, which needs
    nothing.
    """
    kind = _text(settings, "word_tokenizer_type")
    if settings.get("do_word_tokenize") is False or kind in ("", "basic"):
        return
    mecab = _object(settings.get("mecab_kwargs"))
    dictionary = _text(mecab, "mecab_dic") if "mecab_dic" in mecab else "unidic_lite"
    if kind != "mecab" or dictionary not in DICTIONARIES or mecab.get("mecab_option"):
        # Options could name any file of the machine, including one to write.
        raise _unfit(
            TOKENIZER_CONFIG,
            "splits words in an unsupported way. Use 'mecab' with the 'mecab_dic' "
            f"{' or '.join(DICTIONARIES)} and without 'mecab_option'.",
        )
    subject = f"BertJapaneseTokenizer with {dictionary}"
    yield RequiredPackage(subject, "fugashi", TOKENIZER_CONFIG)
    yield RequiredPackage(subject, DICTIONARIES[dictionary], TOKENIZER_CONFIG)


def _of_weights(config: Mapping[str, Json]) -> Iterator[RequiredPackage]:
    """Yields the needs of quantized weights."""
    quantization = _object(config.get("quantization_config"))
    method = _text(quantization, "quant_method")
    if not method and (quantization.get("load_in_8bit") or quantization.get("load_in_4bit")):
        method = "bitsandbytes"
    if package := QUANTIZED.get(method):
        instead = "Upload the model in full or half precision."
        yield RequiredPackage(f"quantization by {method}", package, CONFIG, instead)


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _text(values: Mapping[str, Json], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _unfit(path: str, what: str) -> InspectionError:
    return InspectionError(FailureCode.UNSUPPORTED_MODEL, f"{path} {what}", path)
