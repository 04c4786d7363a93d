"""Inspection's knowledge of the libraries' classes, compared with the libraries.

A new release with other requirements fails here.
"""

import ast
import fnmatch
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import diffusers.utils.dummy_torch_and_torchsde_objects as torchsde
import transformers
from packaging.requirements import Requirement
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import (
    CONFIG_MAPPING_NAMES,
    model_type_to_module_name,
)
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import (
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.utils.import_utils import define_import_structure

from stoker.inspection import requirements
from stoker.models.tasks.registry import PIPELINES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODELS = Path(transformers.__file__).parent / "models"

NOT_WANTED = {
    # Only `normalize` uses it, which no code calls.
    ("marian", "sacremoses"),
    # Only code that parses a page's formulas uses these.
    ("nougat", "Levenshtein"),
    ("nougat", "levenshtein"),
    ("nougat", "nltk"),
    # For texts in other languages than the model's own, which no endpoint supports.
    ("flaubert", "Mykytea"),
    ("xlm", "Mykytea"),
    ("xlm", "pythainlp"),
    ("xlm", "rjieba"),
    # A CTC model only reads phonemes.
    ("wav2vec2_phoneme", "phonemizer"),
    # `unfit` refuses speech models that need these.
    ("fastspeech2_conformer", "g2p_en"),
    ("vits", "phonemizer"),
    # No pipeline serves it.
    ("pop2piano", "pretty_midi"),
}
"""Modules of transformers and packages that they import, but not for any served feature."""
BY_SETTINGS = {
    ("bert_japanese", "fugashi"),
    ("bert_japanese", "ipadic"),
    ("bert_japanese", "rhoknp"),
    ("bert_japanese", "sudachipy"),
    ("bert_japanese", "unidic"),
    ("bert_japanese", "unidic_lite"),
    ("bertweet", "emoji"),
    ("vits", "uroman"),
}
"""Tokenizers with requirements that depend on their settings. Covered by
tests/inspection/test_packages.py.
"""
PREPARED_HERE = {"Sam2ImageProcessor"}
"""Image processors that are never created. Our own stages replace them."""
READ_BY_TRANSFORMERS = {"bitnet", "fp8", "gemma", "gguf", "mxfp4", "mxfp8"}


def distribution(name: str) -> str:
    """Returns a package's normalized name, as used by an index."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name)[0]).lower()


@cache
def installed() -> frozenset[str]:
    """Returns the names of all packages that Stoker's own dependencies install, without extras."""
    names: set[str] = set()
    visited: set[str] = set()
    pending: list[str] = list(PROJECT["dependencies"])
    while pending:
        if (line := pending.pop()) in visited:
            continue
        visited.add(line)
        requirement = Requirement(line)
        try:
            needed = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            # Required for another system or another Python only.
            continue
        names.add(distribution(requirement.name))
        for dependency in needed:
            marker = Requirement(dependency).marker
            extras = ["", *requirement.extras]
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(dependency)
    return frozenset(names)


@cache
def present(module: str) -> bool:
    """Returns True if every install has the module."""
    if module in sys.stdlib_module_names or module == "vision":
        # `vision` is transformers' name for Pillow.
        return True
    return bool(
        {distribution(package) for package in brought().get(module, [module])} & installed()
    )


@cache
def brought() -> Mapping[str, list[str]]:
    """Maps a module to the packages that provide it."""
    return importlib.metadata.packages_distributions()


def foreign(source: Path) -> Iterator[str]:
    """Yields the modules that a module of transformers imports or requires, except always installed
    ones.
    """
    text = source.read_text()
    imported = re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)
    # Parsing all files takes minutes. This filter finds all files with such imports, and some lines
    # of documentation.
    if "requires_backends(" not in text and all(present(name) for name in imported):
        return
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "requires_backends":
            backends = ast.literal_eval(node.args[1])
            names = [backends] if isinstance(backends, str) else list(backends)
        yield from (top for name in names if not present(top := name.split(".")[0]))


def served() -> set[tuple[str, str]]:
    """Returns the architectures of transformers that a pipeline accepts, each with its model
    type.
    """
    patterns = [pattern for some in PIPELINES.values() for pattern in some]
    architectures: set[tuple[str, str]] = set()
    for name in dir(modeling_auto):
        if name.endswith("_MAPPING_NAMES"):
            for kind, classes in getattr(modeling_auto, name).items():
                for cls in classes if isinstance(classes, tuple | list) else [classes]:
                    if any(fnmatch.fnmatchcase(cls, pattern) for pattern in patterns):
                        architectures.add((cls, kind))
    return architectures


def test_extras_are_those_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    for name, packages in requirements.EXTRAS.items():
        assert sorted(distribution(package) for package in extras[name]) == sorted(packages)
    (everything,) = extras["all"]
    for name in requirements.EXTRAS:
        assert name in everything
    pinned = {distribution(line) for line in (ROOT / "constraints.txt").read_text().split()}
    assert {name for some in requirements.EXTRAS.values() for name in some} <= pinned
    assert installed() <= pinned


def test_tokenizers() -> None:
    required = {
        (source.parent.name, name)
        for source in MODELS.glob("*/tokenization*.py")
        for name in foreign(source)
    }
    always = {
        (_module(cls), package.replace("-", "_"))
        for cls, package in requirements.TOKENIZERS.items()
        if package != "pandas"
    }
    # pandas is imported if it is installed. Only its use requires it.
    assert (_module("TapasTokenizer"), "pandas") in required
    assert required - {("tapas", "pandas")} == always | NOT_WANTED | BY_SETTINGS


def _module(name: str) -> str:
    cls: Any = tokenizer_class_from_name(name)
    return cls.__module__.split(".")[2]


def test_tokenizers_by_model_type() -> None:
    special = {*requirements.TOKENIZERS, "BertJapaneseTokenizer", "VitsTokenizer"}
    kinds = {kind for _, kind in served()}
    assert {
        kind: name
        for kind, name in TOKENIZER_MAPPING_NAMES.items()
        if name in special and kind in kinds
    } == requirements.BY_MODEL_TYPE


def test_tokenizers_without_places() -> None:
    names = {name for name in TOKENIZER_MAPPING_NAMES.values() if name}
    classes = {name: tokenizer_class_from_name(name) for name in names}
    slow = {
        name
        for name, cls in classes.items()
        if cls is not None and not issubclass(cls, transformers.PreTrainedTokenizerFast)
    }
    assert slow - {"MistralCommonBackend"} == requirements.WITHOUT_PLACES


def test_models() -> None:
    required = {
        (kind, name)
        for _, kind in served()
        for source in MODELS.glob(f"{model_type_to_module_name(kind)}/modeling_*.py")
        for name in foreign(source)
    }
    optional = {"bitsandbytes", "deepspeed", "mambapy", "peft", "xlstm"}
    kinds = {kind for _, kind in served()}
    assert {requirement for requirement in required if requirement[1] not in optional} == {
        (kind, package) for kind, package in requirements.MODELS.items() if kind in kinds
    }
    assert set(requirements.MODELS) <= set(CONFIG_MAPPING_NAMES)


def test_image_processors() -> None:
    needing: set[str] = set()
    for backends, modules in define_import_structure(str(MODELS), prefix="models").items():
        if "torchvision" in backends:
            needing |= {name for names in modules.values() for name in names}
    alone = {
        both["torchvision"]
        for both in IMAGE_PROCESSOR_MAPPING_NAMES.values()
        if both.get("torchvision") and not both.get("pil")
    }
    assert alone & needing - PREPARED_HERE == requirements.NEEDS_TORCHVISION


def test_backbones_by_default() -> None:
    kinds = {kind for _, kind in served()}
    timm_kinds: set[str] = set()
    for kind in kinds:
        for source in MODELS.glob(f"{model_type_to_module_name(kind)}/configuration_*.py"):
            if "timm" in source.read_text():
                backbone = getattr(transformers.CONFIG_MAPPING[kind](), "backbone_config", None)
                if getattr(backbone, "model_type", "") == "timm_backbone":
                    timm_kinds.add(kind)
    assert timm_kinds == requirements.TIMM_BY_DEFAULT


def test_quantization() -> None:
    methods = set(AUTO_QUANTIZER_MAPPING)
    assert methods - READ_BY_TRANSFORMERS == set(requirements.QUANTIZED) - {"bitsandbytes"}


def test_schedulers() -> None:
    names = {name for name in vars(torchsde) if name.endswith("Scheduler")}
    assert names == requirements.SCHEDULERS
