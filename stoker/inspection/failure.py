"""Why an uploaded model was refused."""

from enum import StrEnum

_SHOWN_CHARACTERS = 80


class FailureCode(StrEnum):
    """The closed list of reasons for which inspection refuses a set of files."""

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
    """A set of files was refused.

    Attributes:
        code: the reason, of the closed list.
        message: what was wrong and what would be right, fit to be shown to the uploader. It names
            files by the path they were uploaded under and holds printable text only.
        path: the file at fault, or None where the set as a whole is.
    """

    def __init__(self, code: FailureCode, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path


def quoted(text: str) -> str:
    """An uploader's text made fit for a message: short, quoted, printable ASCII.

    Look-alike, control and direction-changing characters come out as escapes.
    """
    shown = text[:_SHOWN_CHARACTERS]
    return ascii(shown) + ("..." if len(text) > _SHOWN_CHARACTERS else "")
