"""Diffusers pipelines: a folder of components that model_index.json lists."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.inspection.documents import Json, load_json
from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import Header
from stoker.inspection.weights import (
    DIFFUSERS,
    TRANSFORMERS,
    Weights,
    find_files,
    summed,
)

MODEL_INDEX = "model_index.json"

_CONFIG = "config.json"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_NAMES = {"diffusers": DIFFUSERS, "transformers": TRANSFORMERS}
# The only class that a folder names by a pipeline's module instead of the library. Diffusers' own
# save_pretrained writes it in every folder of Stable Diffusion 1 and 2.
_SAFETY_CHECKER = ("stable_diffusion", "StableDiffusionSafetyChecker")
# Components without weights: maps the end of the class's name to files, one of which is required.
_WEIGHTLESS = {
    "Scheduler": ("scheduler_config.json",),
    "Tokenizer": ("tokenizer_config.json", "tokenizer.json", "vocab.json", "spiece.model"),
    "TokenizerFast": ("tokenizer_config.json", "tokenizer.json"),
    "TokenizersBackend": ("tokenizer_config.json", "tokenizer.json"),
    "FeatureExtractor": ("preprocessor_config.json",),
    "ImageProcessor": ("preprocessor_config.json",),
    "ImageProcessorFast": ("preprocessor_config.json",),
    "ImageProcessorPil": ("preprocessor_config.json",),
    "Processor": ("preprocessor_config.json", "processor_config.json"),
}
# These classes choose the class to load by a file's content, so their names reveal nothing here.
_CHOOSING = re.compile(r"Auto(?:Model|Tokenizer|Processor|Config|FeatureExtractor|Image).*")


@dataclass(frozen=True)
class Component:
    """Entry of model_index.json that is loaded from the folder of its name."""

    name: str
    library: str
    cls: str

    @property
    def needed(self) -> tuple[str, ...] | None:
        """Files of which a component without weights needs one. None means that it has weights."""
        ends = sorted(_WEIGHTLESS, key=len, reverse=True)
        return next((_WEIGHTLESS[end] for end in ends if self.cls.endswith(end)), None)


def read_index(files: FileSet) -> tuple[str, tuple[Component, ...]]:
    """Returns the pipeline's class and its components from model_index.json in the top folder.

    A component is `[library, class]` with the library diffusers or transformers, or `[null, null]`
    if the pipeline does not need it. Other libraries are rejected: their name is a module that a
    loader imports.

    Raises:
        InspectionError: `BAD_CONFIG`, `BAD_JSON`, `REMOTE_CODE`.
    """
    index = load_json(files, MODEL_INDEX)
    if not isinstance(index, dict):
        raise _bad_index("is not a JSON object")
    if "custom_pipeline" in index:
        raise _custom("names a custom pipeline (key 'custom_pipeline')")
    architecture = index.get("_class_name")
    if isinstance(architecture, list):
        raise _custom("names a pipeline of a separate module")
    if not isinstance(architecture, str) or not _NAME.fullmatch(architecture):
        raise _bad_index(
            'does not name the pipeline\'s class, as in "_class_name": "StableDiffusionPipeline"'
        )
    components = [
        component
        for name, value in index.items()
        if not name.startswith("_") and (component := _component(name, value))
    ]
    if not any(component.needed is None for component in components):
        raise _bad_index("lists no model")
    return architecture, tuple(components)


def find_pipeline_weights(
    files: FileSet, headers: Mapping[str, Header], components: tuple[Component, ...]
) -> Weights:
    """Returns the weights of all components. Each component must have the files that it is loaded
    from.

    Raises:
        InspectionError: `MISSING_CONFIG`, `MISSING_TOKENIZER`, `MISSING_WEIGHTS`, `BAD_CONFIG`,
            `UNSUPPORTED_FORMAT`, and as `find_weights`.
    """
    warnings: list[str] = []
    used: set[str] = set()
    for component in components:
        if component.needed is None:
            used |= _weight_files(files, headers, component, warnings)
        elif not any(f"{component.name}/{name}" in files for name in component.needed):
            code = FailureCode.MISSING_CONFIG
            if "Tokenizer" in component.cls:
                code = FailureCode.MISSING_TOKENIZER
            raise _lacks(code, component, component.needed[0])
    warnings.extend(
        f"{path} is not loaded: {MODEL_INDEX} lists no component that loads it."
        for path in sorted(headers.keys() - used)
    )
    return summed([headers[path] for path in sorted(used)], tuple(warnings))


def _component(name: str, value: Json) -> Component | None:
    """Returns the component, or None if it is left out or is an option of the pipeline."""
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise _bad_index(f"has an object as {quoted(name)}, which no pipeline accepts")
        return None
    if value == [None, None]:
        return None
    library, cls = value if len(value) == 2 else (None, None)
    if not isinstance(library, str) or not isinstance(cls, str) or not _NAME.fullmatch(cls):
        raise _bad_index(f"does not give [library, class] for {quoted(name)}")
    if not _NAME.fullmatch(name):
        raise _bad_index(f"has a component named {quoted(name)}, which is not a folder name")
    if (library, cls) == _SAFETY_CHECKER:
        return Component(name, "transformers", cls)
    if library not in _NAMES:
        raise _custom(f"takes {quoted(name)} from {quoted(library)}")
    if _CHOOSING.fullmatch(cls) and not cls.startswith("Autoencoder"):
        raise _bad_index(f"names {cls} for {quoted(name)} instead of a specific class")
    if cls.endswith("Pipeline"):
        raise _bad_index(f"names a pipeline, {cls}, as the component {quoted(name)}")
    return Component(name, library, cls)


def _weight_files(
    files: FileSet, headers: Mapping[str, Header], component: Component, warnings: list[str]
) -> set[str]:
    folder = f"{component.name}/"
    if f"{folder}{_CONFIG}" not in files:
        raise _lacks(FailureCode.MISSING_CONFIG, component, _CONFIG)
    config = load_json(files, f"{folder}{_CONFIG}")
    if not isinstance(config, dict):
        raise InspectionError(
            FailureCode.BAD_CONFIG, f"{folder}{_CONFIG} is not a JSON object.", f"{folder}{_CONFIG}"
        )
    if config.get("quantization_config"):
        raise InspectionError(
            FailureCode.UNSUPPORTED_FORMAT,
            f"{folder}{_CONFIG} describes quantized weights, which are not supported. Upload "
            "the pipeline in full or half precision.",
            f"{folder}{_CONFIG}",
        )
    names = _NAMES[component.library]
    inside = {
        path.removeprefix(folder): header
        for path, header in headers.items()
        if path.startswith(folder)
    }
    index = f"{folder}{names.index}"
    documents = {names.index: load_json(files, index)} if index in files else {}
    folder_warnings: list[str] = []
    try:
        used = find_files(inside, documents, names, folder_warnings)
    except InspectionError as error:
        path = f"{folder}{error.path}" if error.path else None
        raise InspectionError(error.code, f"In {folder} {error.message}", path) from error
    if not used:
        raise _lacks(FailureCode.MISSING_WEIGHTS, component, names.whole)
    warnings.extend(f"In {folder} {warning}" for warning in folder_warnings)
    return {f"{folder}{path}" for path in used}


def _lacks(code: FailureCode, component: Component, file: str) -> InspectionError:
    return InspectionError(
        code,
        f"{MODEL_INDEX} lists {component.name} ({component.cls}), but {component.name}/{file} is "
        "missing. Upload the whole folder that save_pretrained wrote, with weights as safetensors.",
        f"{component.name}/{file}",
    )


def _custom(what: str) -> InspectionError:
    return InspectionError(
        FailureCode.REMOTE_CODE,
        f"{MODEL_INDEX} {what}. Only classes of diffusers and transformers are loaded here. "
        "Save the pipeline with those classes.",
        MODEL_INDEX,
    )


def _bad_index(what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_CONFIG,
        f"{MODEL_INDEX} {what}. Correct it or save the pipeline again.",
        MODEL_INDEX,
    )
