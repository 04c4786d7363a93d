"""Inspects an uploaded file set. Identifies its model, or reports why it is rejected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.inspection.abilities import abilities, context_tokens, gguf_context_tokens
from stoker.inspection.adapter import facts_of, find_adapter
from stoker.inspection.claims import refuse_claims
from stoker.inspection.config import (
    CONFIG,
    find_hints,
    find_pipeline,
    read_config,
    refuse_missing_tokenizer,
    refuse_unspeakable,
    unknown_pipeline,
)
from stoker.inspection.content import check_content
from stoker.inspection.diffusers_model import (
    MODEL_INDEX,
    find_pipeline_weights,
    read_index,
)
from stoker.inspection.documents import Json, load_json, refuse_remote_code
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileReader, FileSet
from stoker.inspection.gguf import GgufHeader, read_gguf
from stoker.inspection.gguf_model import TOKENIZER, find_model, refuse_shards
from stoker.inspection.language import attention_heads, refuse_unserved_writer
from stoker.inspection.names import refuse_clashes, validate_path
from stoker.inspection.packages import (
    DOCUMENTS,
    refuse_components,
    refuse_missing_packages,
)
from stoker.inspection.processors import refuse_missing_processor
from stoker.inspection.recognise import FileKind
from stoker.inspection.safetensors import Header, read_header
from stoker.inspection.sentence import refuse_unfit_modules, refuse_unfit_reranker
from stoker.inspection.shapes import refuse_other_shapes, warn_of_unused_layers
from stoker.inspection.tokens import essentials, find_template, refuse_missing_rows
from stoker.inspection.unserved import refuse_drawn_questions, refuse_other_senses
from stoker.inspection.weights import MODULES, TRANSFORMERS, Weights, find_weights
from stoker.models.adapters.lora import ADAPTER, WEIGHTS, Lora
from stoker.models.adapters.lora import CONFIG as CONFIG_OF_ADAPTER
from stoker.models.llm.model_types import TEXT_GENERATION
from stoker.models.stages.sentence_modules import PROMPTS

MAX_FILES = 2_000
MAX_TENSORS = 500_000

# Memory of a forward pass in addition to the weights; see `Inspection.memory_bytes`.
WORKING_SHARE = 5
MIN_WORKING_BYTES = 128 << 20

# Parsed documents that later steps need. Others, such as a tokenizer, can be large and are dropped
# after the search.
_KEPT = DOCUMENTS | {CONFIG_OF_ADAPTER, MODULES, PROMPTS, TRANSFORMERS.index}
_TEMPLATES = frozenset({"chat_template.jinja", "tokenizer_config.json"})
# Bytes of a dequantized number.
_SINGLE_BYTES = 4


@dataclass(frozen=True)
class Inspection:
    """Result of inspecting an accepted file set.

    Attributes:
        pipeline: the task that it serves, by its Hugging Face hub name.
        architecture: the class that it was saved from, as in `BertForTokenClassification` or
            `StableDiffusionPipeline`, or is loaded as from GGUF.
        model_type: transformers' name for the kind of model, as in `bert`; `diffusers` for its
            pipelines.
        parameters: the number of values in all weight tensors.
        weight_bytes: the bytes of these tensors.
        memory_bytes: an estimate of the memory for loading and running, without the libraries' own.
            It includes the weights in their stored dtype, for GGUF in single precision. It adds a
            fifth of that, but at least 128 MiB, for activations and buffers, or the memory for
            dequantizing if that is more. It serves for admission before the first load and is later
            replaced by measurements.
        dtype: the safetensors dtype of most weight bytes, as in `F32`; for GGUF its type or
            mixture, as in `Q4_K_M`.
        engines: the engines that can load it, the preferred one first.
        warnings: oddities that are not errors, in words for the uploader.
        adapter: for an adapter, its largest rank, the modules that it adapts by their own names,
            and the base that it says it was trained on.
        attention_heads: for a language model, the attention heads of a layer; 0 if unknown.
        context_tokens: for a language model, the maximum tokens of prompt and answer; None if
            unknown.
        abilities: for a language model, what its chat template adds: `chat`, `tools`, `reasoning`.
    """

    pipeline: str
    architecture: str
    model_type: str
    parameters: int
    weight_bytes: int
    memory_bytes: int
    dtype: str
    engines: tuple[str, ...]
    warnings: tuple[str, ...]
    adapter: dict[str, Any] | None = None
    attention_heads: int = 0
    context_tokens: int | None = None
    abilities: tuple[str, ...] | None = None


def inspect(
    files: FileReader, pipeline: str | None, pipelines: Mapping[str, Sequence[str]]
) -> Inspection:
    """Inspects one file set by content. Synchronous; reads only headers and small files.

    Args:
        files: the uploaded files.
        pipeline: the pipeline that the uploader requests; None to find it.
        pipelines: for each pipeline served, patterns of the architectures that it serves; see
            `stoker.models.tasks.architectures.matching`.

    Raises:
        InspectionError: the files are rejected; `FailureCode` lists the reasons. Errors of the
            reader itself pass through.
    """
    file_set = FileSet(files)
    _check_names(file_set)
    headers, documents, gguf_paths = _read_files(file_set)
    if adapter := find_adapter(file_set, headers, documents):
        return _inspect_adapter(adapter, headers, pipeline)
    if MODEL_INDEX in file_set:
        return _inspect_diffusers(file_set, headers, pipeline, pipelines)
    refuse_unfit_modules(None, file_set, documents, headers)
    weights = find_weights(headers, documents)
    if weights is None and gguf_paths:
        return _inspect_gguf(file_set, gguf_paths, pipeline, pipelines)
    config = read_config(documents)
    if weights is None:
        raise InspectionError(
            FailureCode.MISSING_WEIGHTS,
            "The top folder contains no weights. Upload model.safetensors, or the model's "
            f"shards with {TRANSFORMERS.index}.",
        )
    hints = find_hints(file_set, documents)
    served = find_pipeline(config.architecture, pipeline, hints, pipelines)
    refuse_unfit_reranker(served, documents, file_set, asked=pipeline is not None)
    refuse_unserved_writer(served, config, documents)
    refuse_unfit_modules(served, file_set, documents, headers)
    is_named = pipeline is not None or served in hints
    refuse_other_senses(served, config.architecture, documents, asked=is_named)
    refuse_drawn_questions(documents)
    refuse_missing_tokenizer(served, file_set, documents, config.architecture)
    refuse_unspeakable(config.architecture, file_set, documents)
    template = find_template(file_set, documents)
    refuse_missing_rows(documents, template)
    refuse_claims(documents, headers.values())
    loaded = [header for path, header in headers.items() if "/" not in path]
    refuse_other_shapes(served, config.architecture, documents, loaded)
    warnings = refuse_missing_packages(served, file_set, documents)
    engine = "vllm" if warnings else "torch"
    warnings += warn_of_unused_layers(served, documents, loaded)
    refuse_missing_processor(served, config.architecture, file_set, documents)
    warnings += tuple(
        f"{path} is not loaded: the safetensors files are used." for path in gguf_paths
    )
    inspection = _of_weights(
        weights, served, config.architecture, config.model_type, engine=engine, warnings=warnings
    )
    return replace(
        inspection,
        attention_heads=attention_heads(served, documents),
        context_tokens=context_tokens(served, documents),
        abilities=abilities(served, template),
    )


def _inspect_diffusers(
    files: FileSet,
    headers: dict[str, Header],
    pipeline: str | None,
    pipelines: Mapping[str, Sequence[str]],
) -> Inspection:
    architecture, components = read_index(files)
    served = find_pipeline(architecture, pipeline, find_hints(files, {}), pipelines)
    refuse_components(components)
    weights = find_pipeline_weights(files, headers, components)
    return _of_weights(weights, served, architecture, "diffusers", engine="diffusers")


def _of_weights(
    weights: Weights,
    pipeline: str,
    architecture: str,
    model_type: str,
    *,
    engine: str,
    warnings: tuple[str, ...] = (),
) -> Inspection:
    return Inspection(
        pipeline=pipeline,
        architecture=architecture,
        model_type=model_type,
        parameters=weights.parameters,
        weight_bytes=weights.weight_bytes,
        memory_bytes=_memory_bytes(weights.weight_bytes),
        dtype=weights.dtype,
        engines=(engine,),
        warnings=weights.warnings + warnings,
    )


def _check_names(files: FileSet) -> None:
    if len(files.sizes) > MAX_FILES:
        raise InspectionError(
            FailureCode.TOO_MANY_FILES,
            f"The model has {len(files.sizes)} files. A model may have at most {MAX_FILES}. "
            "Leave out the files that it does not need.",
        )
    for path in files.sizes:
        validate_path(path)
    refuse_clashes(files.sizes)


def _read_files(files: FileSet) -> tuple[dict[str, Header], dict[str, Json], list[str]]:
    """Checks every file. Returns the headers, the kept documents, and the top folder's GGUF
    files.
    """
    headers: dict[str, Header] = {}
    documents: dict[str, Json] = {}
    gguf_paths: list[str] = []
    tensors = 0
    for path in sorted(files.sizes):
        kind = check_content(files, path)
        if kind is FileKind.SAFETENSORS:
            headers[path] = read_header(files, path)
            tensors += len(headers[path].tensors)
            if tensors > MAX_TENSORS:
                raise InspectionError(
                    FailureCode.TOO_MANY_TENSORS,
                    f"The weight files contain more than {MAX_TENSORS} tensors in total. "
                    "Leave out weights that the model does not need.",
                    path,
                )
        elif kind is FileKind.JSON:
            document = load_json(files, path)
            refuse_remote_code(path, document)
            if path in _KEPT:
                documents[path] = document
            elif path == TOKENIZER:
                documents[path] = essentials(document)
        elif kind is FileKind.GGUF and "/" not in path:
            gguf_paths.append(path)
    return headers, documents, gguf_paths


def _inspect_adapter(found: Lora, headers: dict[str, Header], pipeline: str | None) -> Inspection:
    if pipeline not in {None, ADAPTER}:
        raise InspectionError(
            FailureCode.PIPELINE_MISMATCH,
            f"The files are an adapter, which serves the pipeline of its base. Request the "
            f"pipeline '{ADAPTER}', or none.",
            CONFIG_OF_ADAPTER,
        )
    header = headers[WEIGHTS]
    sizes = header.bytes_by_dtype()
    return Inspection(
        pipeline=ADAPTER,
        architecture="LoRA",
        model_type="peft",
        parameters=header.parameters,
        weight_bytes=header.data_bytes,
        memory_bytes=header.data_bytes,
        dtype=max(sizes, key=lambda dtype: sizes[dtype]),
        engines=("torch",),
        warnings=(),
        adapter=facts_of(found),
    )


def _inspect_gguf(
    files: FileSet,
    paths: list[str],
    pipeline: str | None,
    pipelines: Mapping[str, Sequence[str]],
) -> Inspection:
    if pipeline is not None and pipeline not in pipelines:
        raise unknown_pipeline(pipeline, pipelines)
    if pipeline not in {None, TEXT_GENERATION} or TEXT_GENERATION not in pipelines:
        raise InspectionError(
            FailureCode.PIPELINE_MISMATCH,
            f"{paths[0]} is GGUF, which can serve {TEXT_GENERATION} only"
            f"{'' if TEXT_GENERATION in pipelines else ', and that is not served here'}. "
            "Upload the model as safetensors instead.",
            paths[0],
        )
    refuse_shards(paths)
    if len(paths) > 1:
        raise InspectionError(
            FailureCode.AMBIGUOUS_WEIGHTS,
            f"The top folder contains {len(paths)} GGUF files. Upload only the one to serve.",
            paths[1],
        )
    header = read_gguf(files, paths[0])
    model = find_model(paths[0], header, files.sizes)
    warnings: list[str] = []
    if CONFIG in files:
        warnings.append(f"{CONFIG} is not read: {paths[0]} describes the model itself.")
    beside = TOKENIZER in files and not _TEMPLATES.isdisjoint(files.sizes)
    if not model.has_template and not beside:
        warnings.append(f"{paths[0]} has no chat template: it completes texts, but does not chat.")
    if header.metadata.get("tokenizer.ggml.model") == "llama" and TOKENIZER not in files:
        warnings.append(
            f"{paths[0]} has a SentencePiece tokenizer. Texts that begin with a space get "
            "other tokens than the model was made for. To avoid this, upload "
            f"{TOKENIZER} with it."
        )
    return Inspection(
        pipeline=TEXT_GENERATION,
        architecture=model.architecture,
        model_type=model.model_type,
        parameters=header.parameters,
        weight_bytes=sum(header.bytes_by_kind().values()),
        memory_bytes=_memory_bytes(header.parameters * _SINGLE_BYTES, _loading_bytes(header)),
        dtype=model.dtype,
        engines=("torch",),
        warnings=tuple(warnings),
        context_tokens=gguf_context_tokens(header),
        # A template in another file takes the place of the one in the GGUF file.
        abilities=None if beside else abilities(TEXT_GENERATION, _template_of(header)),
    )


def _template_of(header: GgufHeader) -> str | None:
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def _loading_bytes(header: GgufHeader) -> int:
    """Returns the temporary memory for dequantizing: the file, and twice its largest tensor."""
    largest = max(tensor.numbers for tensor in header.tensors.values())
    return sum(header.bytes_by_kind().values()) + 2 * largest * _SINGLE_BYTES


def _memory_bytes(weight_bytes: int, loading_bytes: int = 0) -> int:
    return weight_bytes + max(weight_bytes // WORKING_SHARE, MIN_WORKING_BYTES, loading_bytes)
