"""Reasons for which an uploaded model is rejected."""

from enum import StrEnum

_SHOWN_CHARACTERS = 80


class FailureCode(StrEnum):
    """Closed list of reasons for which inspection rejects a set of files."""

    ADAPTER_ONLY = "adapter_only"
    AMBIGUOUS_PIPELINE = "ambiguous_pipeline"
    AMBIGUOUS_WEIGHTS = "ambiguous_weights"
    ARCHIVE = "archive"
    BAD_CONFIG = "bad_config"
    BAD_GGUF = "bad_gguf"
    BAD_INDEX = "bad_index"
    BAD_JSON = "bad_json"
    BAD_PATH = "bad_path"
    BAD_SAFETENSORS = "bad_safetensors"
    BAD_SENTENCEPIECE = "bad_sentencepiece"
    BAD_TEXT = "bad_text"
    EXECUTABLE = "executable"
    FILE_TOO_LARGE = "file_too_large"
    LFS_POINTER = "lfs_pointer"
    MISSING_CONFIG = "missing_config"
    MISSING_INDEX = "missing_index"
    MISSING_PACKAGE = "missing_package"
    MISSING_PROCESSOR = "missing_processor"
    MISSING_SHARD = "missing_shard"
    MISSING_TOKENIZER = "missing_tokenizer"
    MISSING_WEIGHTS = "missing_weights"
    PATH_CLASH = "path_clash"
    PICKLE = "pickle"
    PIPELINE_MISMATCH = "pipeline_mismatch"
    REMOTE_CODE = "remote_code"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    TOO_COMPLEX = "too_complex"
    TOO_MANY_FILES = "too_many_files"
    TOO_MANY_TENSORS = "too_many_tensors"
    TRUNCATED = "truncated"
    UNKNOWN_CONTENT = "unknown_content"
    UNKNOWN_PIPELINE = "unknown_pipeline"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    UNSUPPORTED_FORMAT = "unsupported_format"
    UNSUPPORTED_MODEL = "unsupported_model"


class InspectionError(Exception):
    """A set of files was rejected.

    Attributes:
        code: the reason, from the closed list.
        message: the fault and its correction, suitable for the uploader. It names files by their
            uploaded path and contains only printable text.
        path: the file at fault, or None if the whole set is at fault.
    """

    def __init__(self, code: FailureCode, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path


def quoted(text: str) -> str:
    """Returns an uploader's text for use in a message: short, quoted, printable ASCII.

    Look-alike, control and direction-changing characters are escaped.
    """
    shown = text[:_SHOWN_CHARACTERS]
    return ascii(shown) + ("..." if len(text) > _SHOWN_CHARACTERS else "")
