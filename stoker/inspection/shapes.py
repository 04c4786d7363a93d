"""Checks whether the weights have the shapes of config.json.

transformers rejects a tensor of another shape when it loads a model. This module checks the parts
that all architectures share: the rows of the token table, and the labels of a classifier. A replica
checks the rest as it loads.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from stoker.inspection.config import CONFIG, TEXT_PIPELINES
from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.safetensors import Header, Tensor

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Dtypes of plain numbers. Others are quantized: several numbers may share an element."""
_TOKEN_TABLES = ("word_embeddings.weight", "embed_tokens.weight", "shared.weight", "wte.weight")
_CLASSIFIERS = frozenset(
    {
        "classifier.weight",
        "classifier.out_proj.weight",
        "classification_head.out_proj.weight",
        "score.weight",
    }
)
"""Last layers with labels as rows."""
_CLASSIFYING = frozenset(
    {
        "audio-classification",
        "image-classification",
        "text-classification",
        "text-ranking",
        "token-classification",
        "video-classification",
        "zero-shot-classification",
    }
)
_WRITING = frozenset({"image-text-to-text", "text-generation"})
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h)\.([0-9]{1,6})\.")
_CLASSES = (
    "ForAudioClassification",
    "ForImageClassification",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForVideoClassification",
)


def refuse_other_shapes(
    pipeline: str, architecture: str, documents: Mapping[str, Json], headers: Iterable[Header]
) -> None:
    """Rejects weights that contradict the vocabulary or the labels of config.json.

    Args:
        headers: the headers of the safetensors files in the top folder.

    Raises:
        InspectionError: `BAD_CONFIG`, with the tensor's name and both shapes.
    """
    config = documents.get(CONFIG)
    if not isinstance(config, dict) or config.get("quantization_config"):
        return
    tensors = {
        name: tensor
        for header in headers
        for name, tensor in header.tensors.items()
        if tensor.dtype in _FLOATS and len(tensor.shape) > 1
    }
    _refuse_tokens(config, tensors)
    if pipeline in _CLASSIFYING and architecture.endswith(_CLASSES):
        _refuse_labels(config, tensors)


def warn_of_unused_layers(
    pipeline: str, documents: Mapping[str, Json], headers: Iterable[Header]
) -> tuple[str, ...]:
    """Returns warnings for an encoder with more layers in its weights than in its configuration.

    transformers silently leaves the others out. Language models are not checked: their last layers
    may be for drafts.
    """
    config = documents.get(CONFIG)
    if not isinstance(config, dict) or pipeline not in TEXT_PIPELINES - _WRITING:
        return ()
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or any("num_hidden_layers" in part for part in _parts(config)):
        return ()
    indices = [
        int(match[1])
        for header in headers
        for name in header.tensors
        if (match := _LAYER.search(name)) and "decoder" not in name
    ]
    stored = 1 + max(indices, default=-1)
    if stored <= layers:
        return ()
    return (
        f"{CONFIG} has 'num_hidden_layers': {layers}, but the weight files have {stored} "
        f"layers. The last {stored - layers} are not used. If this is unintended, "
        "upload the config.json that these weights were saved with.",
    )


def _refuse_tokens(config: Mapping[str, Json], tensors: Mapping[str, Tensor]) -> None:
    size = config.get("vocab_size")
    # The parts of a composite model have separate vocabularies.
    has_several = "src_vocab_size" in config or any("vocab_size" in part for part in _parts(config))
    if type(size) is not int or has_several:
        return
    tables = {name: tensor for name, tensor in tensors.items() if _is_token_table(name)}
    if not tables or any(table.shape[0] == size for table in tables.values()):
        return
    name, table = min(tables.items())
    raise _refusal(
        name,
        table,
        rows=size,
        key=f"'vocab_size': {size}",
        advice=f"Correct vocab_size to {table.shape[0]}",
    )


def _is_token_table(name: str) -> bool:
    return any(name == table or name.endswith(f".{table}") for table in _TOKEN_TABLES)


def _refuse_labels(config: Mapping[str, Json], tensors: Mapping[str, Tensor]) -> None:
    names, count = config.get("id2label"), config.get("num_labels")
    if isinstance(names, dict):
        # transformers counts these and ignores num_labels.
        count, key = len(names), f"{len(names)} labels in 'id2label'"
    else:
        names = {}
        key = f"'num_labels': {count}"
    if type(count) is not int:
        return
    for name in sorted(_CLASSIFIERS & tensors.keys()):
        tensor = tensors[name]
        if tensor.shape[0] != count:
            raise _refusal(
                name,
                tensor,
                rows=count,
                key=key,
                advice=f"Name {tensor.shape[0]} labels in id2label and label2id",
            )
        unnamed = [row for row in range(count) if str(row) not in names] if names else []
        if unnamed:
            raise InspectionError(
                FailureCode.BAD_CONFIG,
                f"{CONFIG} names no label for row {unnamed[0]} of {name} in 'id2label'. Its keys "
                f"must be '0' to '{count - 1}'.",
                CONFIG,
            )


def _parts(config: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    return (part for part in config.values() if isinstance(part, dict))


def _refusal(name: str, tensor: Tensor, *, rows: int, key: str, advice: str) -> InspectionError:
    expected = [rows, *tensor.shape[1:]]
    return InspectionError(
        FailureCode.BAD_CONFIG,
        f"{CONFIG} has {key}, for which {name} needs the shape {expected}, but the weight "
        f"files have {list(tensor.shape)}. {advice}, or upload the config.json that "
        "these weights were saved with.",
        CONFIG,
    )
