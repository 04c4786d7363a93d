"""Checks whether a file's content is allowed and matches its name."""

import codecs
from pathlib import PurePosixPath

from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileSet
from stoker.inspection.gguf import check_gguf
from stoker.inspection.recognise import FileKind, Foreign, recognise
from stoker.inspection.sentencepiece import check_sentencepiece
from stoker.models.stages.late_interaction import STANFORD_SETTINGS

MAX_TEXT_BYTES = 64 << 20

_ADVICE = {
    FailureCode.PICKLE: "Pickles can run code. Save the weights as safetensors and upload those.",
    FailureCode.ARCHIVE: "Unpack it and upload the model's files.",
    FailureCode.EXECUTABLE: "Programs are never run here. Leave it out.",
    FailureCode.UNSUPPORTED_FORMAT: "Save the weights as safetensors and leave this file out.",
    FailureCode.LFS_POINTER: "Run 'git lfs pull' and upload the file that the pointer stands for.",
}
# Rejected regardless of content: a loader might import or run them because of their name.
_PROGRAM_SUFFIXES = frozenset(
    {
        ".bash",
        ".bat",
        ".cmd",
        ".dll",
        ".dylib",
        ".exe",
        ".ipynb",
        ".jar",
        ".js",
        ".ps1",
        ".py",
        ".pyc",
        ".pyd",
        ".pyi",
        ".pyo",
        ".pyw",
        ".pyx",
        ".pyz",
        ".sh",
        ".so",
        ".whl",
    }
)
_TEXT_SUFFIXES = frozenset(
    {
        "",
        ".cff",
        ".codes",
        ".csv",
        ".jinja",
        ".jsonl",
        ".md",
        ".rst",
        ".tiktoken",
        ".tsv",
        ".txt",
        ".vocab",
        ".yaml",
        ".yml",
    }
)
_SENTENCEPIECE_SUFFIXES = frozenset({".model", ".spm"})
_WEIGHT_SUFFIXES = {FileKind.SAFETENSORS: ".safetensors", FileKind.GGUF: ".gguf"}


def check_content(files: FileSet, path: str) -> FileKind:
    """Returns the kind of a file. Rejects content that is not allowed or does not match the file's
    name.

    Allowed are safetensors (`*.safetensors`), GGUF (`*.gguf`), JSON (`*.json`), SentencePiece
    models (`*.model`, `*.spm`) and UTF-8 text of at most 64 MiB (no suffix, `*.txt`, `*.md`,
    `*.jinja` and the like; `*.model` for tiktoken). Only the first and last few bytes of weights
    are read. Text is read completely. Safetensors headers and JSON are checked by `read_header` and
    `load_json`.

    Raises:
        InspectionError: `PICKLE`, `ARCHIVE`, `EXECUTABLE`, `UNSUPPORTED_FORMAT`, `LFS_POINTER`,
            `UNKNOWN_CONTENT`; `BAD_JSON`, `BAD_TEXT`, `BAD_SENTENCEPIECE`, `BAD_GGUF` if the name
            promises that kind; `FILE_TOO_LARGE`, `TRUNCATED`.
    """
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _PROGRAM_SUFFIXES:
        raise InspectionError(
            FailureCode.EXECUTABLE,
            f"{path} has the name of a program. {_ADVICE[FailureCode.EXECUTABLE]}",
            path,
        )
    kind = recognise(files, path)
    if isinstance(kind, Foreign):
        raise InspectionError(kind.code, f"{path} is {kind.name}. {_ADVICE[kind.code]}", path)
    weight_suffix = _WEIGHT_SUFFIXES.get(kind) if kind else None
    if weight_suffix and suffix != weight_suffix:
        raise _unknown(path, f"holds weights; rename it so that it ends in {weight_suffix}.")
    return _check_as_named(files, path, suffix, is_text=kind is FileKind.TEXT)


def _check_as_named(files: FileSet, path: str, suffix: str, *, is_text: bool) -> FileKind:
    is_tiktoken = suffix == ".model" and is_text and files.sizes[path] > 0
    kind = FileKind.TEXT
    if suffix == ".safetensors":
        kind = FileKind.SAFETENSORS
    elif suffix == ".gguf":
        check_gguf(files, path)
        kind = FileKind.GGUF
    elif suffix == ".json" or path == STANFORD_SETTINGS:
        if not is_text:
            raise _not_text(FailureCode.BAD_JSON, path)
        kind = FileKind.JSON
    elif suffix in _TEXT_SUFFIXES or is_tiktoken:
        if not is_text:
            raise _not_text(FailureCode.BAD_TEXT, path)
        _check_text(files, path)
    elif suffix in _SENTENCEPIECE_SUFFIXES:
        check_sentencepiece(files, path)
        kind = FileKind.SENTENCEPIECE
    else:
        raise _unknown(
            path,
            "has an unknown format. Leave it out: a model consists of safetensors or GGUF "
            "weights, JSON, SentencePiece models and UTF-8 text such as README.md, "
            "LICENSE and vocab.txt.",
        )
    return kind


def _check_text(files: FileSet, path: str) -> None:
    files.refuse_larger(path, MAX_TEXT_BYTES, "a text file")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in files.chunks(path):
            decoder.decode(chunk)
            if b"\x00" in chunk:
                raise _not_text(FailureCode.BAD_TEXT, path)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _not_text(FailureCode.BAD_TEXT, path) from None


def _not_text(code: FailureCode, path: str) -> InspectionError:
    return InspectionError(
        code, f"{path} has the name of a text file but other content. Save it as UTF-8 text.", path
    )


def _unknown(path: str, what: str) -> InspectionError:
    return InspectionError(FailureCode.UNKNOWN_CONTENT, f"{path} {what}", path)
