"""JSON files of a model: bounded parsing, and the search for code that they would load."""

import json
import re
from pathlib import PurePosixPath
from typing import TypeAlias, cast

import orjson

from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MAX_JSON_BYTES = 16 << 20
MAX_TOKENIZER_BYTES = 64 << 20
MAX_DEPTH = 100
# A small file may parse to a hundred times its size. These limits keep it below about half a
# gigabyte. The largest public tokenizers have some 600,000 arrays and 1,500,000 values.
MAX_CONTAINERS = 1_500_000
MAX_VALUES = 4_000_000
# Only small, hand-edited configurations contain numbers that standard JSON lacks.
MAX_LENIENT_BYTES = 1 << 20

_TOKENIZER_NAMES = frozenset({"tokenizer.json", "tekken.json"})
# Files that map tokens to ids, in which any word may be a key.
_TOKEN_MAPS = frozenset({"vocab.json", "added_tokens.json"})
_REMOTE_KEYS = frozenset({"auto_map", "custom_pipelines", "trust_remote_code"})
# transformers fetches a compiled kernel if one of these names a hub repository.
_KERNEL_KEYS = frozenset(
    {
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
    }
)
# sentence-transformers imports the classes that these keys name.
_CLASS_KEYS = frozenset(
    {"activation_fn", "activation_function", "sbert_ce_default_activation_function"}
)
_MODULE_CLASS = re.compile(r"(?:sentence_transformers|pylate)(?:\.[A-Za-z_][A-Za-z0-9_]*)+")


def load_json(files: FileSet, path: str) -> Json:
    """Parses one JSON file.

    The limit is 16 MiB, or 64 MiB for a tokenizer. The file must be well-formed as in RFC 8259. A
    file of up to 1 MiB may also hold Python's `Infinity` and `NaN`, which real state-space
    configurations do.

    Raises:
        InspectionError: `FILE_TOO_LARGE`, `BAD_JSON`.
    """
    is_tokenizer = PurePosixPath(path).name in _TOKENIZER_NAMES
    limit = MAX_TOKENIZER_BYTES if is_tokenizer else MAX_JSON_BYTES
    files.refuse_larger(path, limit, "a tokenizer" if is_tokenizer else "a JSON file")
    data = files.whole(path)
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or data.count(b",") > MAX_VALUES:
        raise _bad_json(path, "holds more values than the JSON of any known model")
    try:
        return cast("Json", orjson.loads(data))
    except orjson.JSONDecodeError as error:
        if "memory" in error.msg:
            # Not the file's fault: orjson reports lack of memory as a syntax error with a text that
            # no real syntax error has.
            raise MemoryError from error
        if len(data) > MAX_LENIENT_BYTES or not (b"Infinity" in data or b"NaN" in data):
            where = f"line {error.lineno}, column {error.colno}"
            raise _bad_json(path, f"is not well-formed JSON ({where})") from None
    try:
        return cast("Json", json.loads(data.decode("utf-8")))
    except (ValueError, RecursionError):
        raise _bad_json(path, "is not well-formed JSON") from None


def refuse_remote_code(path: str, document: Json) -> None:
    """Rejects a document that would make a loader import or fetch code.

    The search covers any depth. It finds the keys `auto_map`, `custom_pipelines` and
    `trust_remote_code` with a value that counts as true. It also finds an attention or expert
    implementation that names a hub repository, and an activation class outside `torch.nn`. In
    `modules.json` it finds a module class outside `sentence_transformers`. In a vocabulary such a
    key is a token if its value is an id.

    Raises:
        InspectionError: `REMOTE_CODE`; `BAD_JSON` for a document that is nested more than 100
            levels.
    """
    name = PurePosixPath(path).name
    vocabulary = _tokenizer_vocabulary(document) if name in _TOKENIZER_NAMES else None
    pending: list[tuple[Json, int]] = [(document, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _bad_json(path, f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, dict):
            _check_keys(path, node, tokens=name in _TOKEN_MAPS or node is vocabulary)
            children = list(node.values())
        else:
            children = node if isinstance(node, list) else []
        pending.extend((child, depth + 1) for child in children if isinstance(child, dict | list))
    if name == "modules.json":
        _check_module_classes(path, document)


def _check_keys(path: str, node: dict[str, Json], *, tokens: bool) -> None:
    for key in _REMOTE_KEYS & node.keys():
        if node[key] and not (tokens and type(node[key]) is int):
            raise _remote_code(path, key)
    for key in _KERNEL_KEYS & node.keys():
        if _names_repository(node[key]):
            raise _remote_code(path, key)
    for key in _CLASS_KEYS & node.keys():
        value = node[key]
        if isinstance(value, str) and "." in value and not value.startswith("torch.nn."):
            raise _remote_code(path, key)


def _names_repository(value: Json) -> bool:
    names = value.values() if isinstance(value, dict) else [value]
    return any(isinstance(name, str) and "/" in name for name in names)


def _check_module_classes(path: str, document: Json) -> None:
    modules = document if isinstance(document, list) else [document]
    for module in modules:
        kind = module.get("type") if isinstance(module, dict) else None
        if kind is None:
            continue
        if not isinstance(kind, str) or not _MODULE_CLASS.fullmatch(kind):
            raise InspectionError(
                FailureCode.REMOTE_CODE,
                f"{path} names the module class {quoted(str(kind))}. Only classes of "
                "sentence_transformers and pylate are supported. Save the model with "
                "those.",
                path,
            )


def _tokenizer_vocabulary(document: Json) -> Json:
    model = document.get("model") if isinstance(document, dict) else None
    return model.get("vocab") if isinstance(model, dict) else None


def _remote_code(path: str, key: str) -> InspectionError:
    return InspectionError(
        FailureCode.REMOTE_CODE,
        f"{path} asks for code from outside the library (key {key!r}), which is never run here. "
        "Save the model with an architecture of the library itself and remove the key.",
        path,
    )


def _bad_json(path: str, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_JSON, f"{path} {what}; export the model again and upload that file.", path
    )
