"""Recognises a file's format from its first and last bytes.

A file is rejected unless it is one of the few kinds that a model may have. A list of bad content
could be bypassed, so this module has none. It recognises other formats only for clear error
messages.
"""

import codecs
import re
from dataclasses import dataclass
from enum import Enum, auto

from stoker.inspection import gguf
from stoker.inspection.failure import FailureCode
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import looks_like_safetensors

HEAD_BYTES = 4096
TAIL_BYTES = 16


class FileKind(Enum):
    """Kinds of content that a model may have."""

    SAFETENSORS = auto()
    GGUF = auto()
    JSON = auto()
    SENTENCEPIECE = auto()
    TEXT = auto()


@dataclass(frozen=True)
class Foreign:
    """Known format that is always rejected: the reason and its name in messages."""

    code: FailureCode
    name: str


_LFS_POINTER = Foreign(FailureCode.LFS_POINTER, "a Git LFS pointer")
_SCRIPT = Foreign(FailureCode.EXECUTABLE, "a script")
_PICKLE = Foreign(FailureCode.PICKLE, "a Python pickle")
_TORCH = Foreign(FailureCode.PICKLE, "a PyTorch checkpoint, which is made of pickles")
_ZIP = Foreign(FailureCode.ARCHIVE, "a zip archive")
_MACH_O = Foreign(FailureCode.EXECUTABLE, "a Mach-O program or library")

# Magic numbers from https://github.com/file/file/tree/master/magic/Magdir. The first match counts.
_BINARY_FORMATS: tuple[tuple[bytes, Foreign], ...] = (
    (rb"PK\x03\x04.*/data\.pkl", _TORCH),
    (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", _ZIP),
    (rb"\x1f\x8b", Foreign(FailureCode.ARCHIVE, "gzip-compressed")),
    (rb"BZh[1-9]", Foreign(FailureCode.ARCHIVE, "bzip2-compressed")),
    (rb"\xfd7zXZ\x00", Foreign(FailureCode.ARCHIVE, "xz-compressed")),
    (rb"\x5d\x00\x00", Foreign(FailureCode.ARCHIVE, "LZMA-compressed")),
    (rb"\x28\xb5\x2f\xfd", Foreign(FailureCode.ARCHIVE, "zstd-compressed")),
    (rb"\x04\x22\x4d\x18", Foreign(FailureCode.ARCHIVE, "LZ4-compressed")),
    (rb"7z\xbc\xaf\x27\x1c", Foreign(FailureCode.ARCHIVE, "a 7z archive")),
    (rb"Rar!\x1a\x07", Foreign(FailureCode.ARCHIVE, "a RAR archive")),
    (rb".{257}ustar", Foreign(FailureCode.ARCHIVE, "a tar archive")),
    (rb"\x7fELF", Foreign(FailureCode.EXECUTABLE, "an ELF program or library")),
    (rb"MZ", Foreign(FailureCode.EXECUTABLE, "a Windows program or library")),
    (rb"\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe|\xca\xfe\xba\xbe", _MACH_O),
    (rb"..\r\n\x00{4}", Foreign(FailureCode.EXECUTABLE, "compiled Python")),
    (rb"\x89HDF\r\n\x1a\n", Foreign(FailureCode.UNSUPPORTED_FORMAT, "an HDF5 file")),
    (rb"\x93NUMPY", Foreign(FailureCode.UNSUPPORTED_FORMAT, "a NumPy array")),
    # PROTO, then 2 to 5.
    (rb"\x80[\x02-\x05]", _PICKLE),
    # ir_version, then producer_name: the start of the ModelProto that exporters write. See
    # https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
    (
        rb"\x08[\x01-\x1f]\x12[\x01-\x40][\x20-\x7e]",
        Foreign(FailureCode.UNSUPPORTED_FORMAT, "an ONNX model"),
    ),
)
_BINARY_PATTERNS = [(re.compile(start, re.DOTALL), what) for start, what in _BINARY_FORMATS]

# Pickle protocols 0 and 1 have no magic number and are mostly printable. This pattern recognises
# the output of picklers and known exploits. Content that passes it must still be well-formed text
# under a text name, which no code unpickles.
_OLD_PICKLE = re.compile(
    rb"""[(\]})]*+(?:
        (?<=[(\]})])[dlt]?(?:p[0-9]+\n|q[\x00-\x1f])            # a container that is memoised
        | [ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n                # a class by its name, and its use
          (?:p[0-9]+\n|q[\x00-\x1f]|[(\])}][^\n]|S['"]|\.\s*\Z)
        | (?:S['"][^\n]*|I-?[0-9]+|F-?[0-9.e+-]+|L-?[0-9]+L?)\n # a string or number, and its use
          (?:p[0-9]+\n|q[\x00-\x1f]|[.ciSVIFL(])
        | V[^\n]*\np[0-9]+\n
    )""",
    re.VERBOSE,
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_LFS_START = b"version https://git-lfs.github.com/spec/"


def recognise(files: FileSet, path: str) -> FileKind | Foreign | None:
    """Returns the format of a file's bytes, regardless of its name.

    JSON and empty files count as text. SentencePiece models have no magic number. They return None,
    like everything else of no known format.
    """
    head = files.head(path, HEAD_BYTES)
    # Checked before pickles: a header of 640 bytes begins with the two bytes of a pickle.
    if looks_like_safetensors(head):
        return FileKind.SAFETENSORS
    if _OLD_PICKLE.match(head) and files.tail(path, TAIL_BYTES).rstrip().endswith(b"."):
        return _PICKLE
    if _is_text(head, is_all=len(head) == files.sizes[path]):
        return _recognise_text(head)
    if head.startswith(gguf.MAGIC):
        return FileKind.GGUF
    return next((file_format for start, file_format in _BINARY_PATTERNS if start.match(head)), None)


def _recognise_text(head: bytes) -> FileKind | Foreign:
    if head.startswith(_LFS_START):
        return _LFS_POINTER
    return _SCRIPT if head.startswith(b"#!") else FileKind.TEXT


def _is_text(head: bytes, *, is_all: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=is_all)
    except UnicodeDecodeError:
        return False
    return not _CONTROL.search(head)
