"""Imports of the engine host, which all forked replicas share."""

import importlib
import logging
from typing import Any

from stoker.models.engines.catalogue import ENGINES
from stoker.models.stages.kinds import ModelKind

log = logging.getLogger(__name__)


def import_libraries() -> None:
    """Imports the modules that every torch replica needs, once for all of them."""
    from stoker.replica.tokenizer_parsing import parse_from_memory

    for name in (
        "torch",
        "transformers",
        "transformers.pipelines",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.bert.modeling_bert",
        "transformers.models.bert.tokenization_bert_legacy",
        "safetensors.torch",
        "stoker.replica.language_loading",
        "stoker.replica.worker",
        "stoker.models.tasks.registry",
        *(name for record in ENGINES.values() for name in record.preloads),
    ):
        importlib.import_module(name)
    # Progress bars are of no use in a log.
    library: Any = importlib.import_module("transformers")
    library.logging.disable_progress_bar()
    parse_from_memory()
    # The first load of a model builds a table of about a thousand regular expressions in 0.1 s. It
    # is built here once instead of in every fork. The table is not public API, so it may be
    # missing.
    try:
        mapping: Any = importlib.import_module("transformers.conversion_mapping")
        mapping.get_checkpoint_conversion_mapping("bert")
    except (ImportError, AttributeError):
        log.warning("preload failed: each fork takes 0.1 s longer")


def _import_model_code(model_type: str) -> None:
    """Imports an architecture's module. The name comes from an artifact, so it is only looked up in
    a table.
    """
    auto: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    if model_type not in auto.CONFIG_MAPPING_NAMES:
        return
    module = auto.model_type_to_module_name(model_type)
    try:
        importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    except Exception:
        log.exception("code of %s could not be imported", model_type)


def _import_pipeline_code(name: str) -> None:
    """Imports a diffusers pipeline with its models, if the name is among the served pipelines.

    Pipelines of a family share components, so one import serves the others, too.
    """
    from stoker.models.tasks.registry import SERVED

    served = [pipeline for pipeline in SERVED.values() if pipeline.kind is ModelKind.DRAWING]
    if not any(name in pipeline.architectures for pipeline in served):
        return
    try:
        importlib.import_module("stoker.models.engines.diffusers")
        getattr(importlib.import_module("diffusers"), name)
    except Exception:
        log.exception("code of %s could not be imported", name)


IMPORTERS = {"transformers": _import_model_code, "diffusers": _import_pipeline_code}
"""Functions that import the code of a model, by library."""
