"""SentencePiece models: a walk over the top level of the protobuf message.

Format: `ModelProto` of
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto in the protobuf
wire format (https://protobuf.dev/programming-guides/encoding/): fields 1 (pieces, repeated),
2 (trainer_spec), 3 (normalizer_spec), 4 (self_test_data), 5 (denormalizer_spec) and 200 onwards
(extensions), every one of them length-delimited.
"""

from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileSet

MAX_BYTES = 16 << 20
# The largest public vocabularies have some 260,000.
MAX_PIECES = 500_000

_PIECES = 1
_TRAINER_SPEC = 2
_LAST_FIELD = 5
_FIRST_EXTENSION = 200
_LENGTH_DELIMITED = 2
_MAX_VARINT_BITS = 35


def check_sentencepiece(files: FileSet, path: str) -> None:
    """Rejects a file that is not a SentencePiece model of at most 16 MiB and 500,000 pieces.

    Raises:
        InspectionError: `FILE_TOO_LARGE`, `BAD_SENTENCEPIECE`.
    """
    files.refuse_larger(path, MAX_BYTES, "a SentencePiece model")
    data = files.whole(path)
    counts: dict[int, int] = {}
    position = 0
    while position < len(data):
        tag, position = _varint(path, data, position)
        field, wire_type = tag >> 3, tag & 7
        is_known = _PIECES <= field <= _LAST_FIELD or field >= _FIRST_EXTENSION
        if wire_type != _LENGTH_DELIMITED or not is_known:
            raise _bad(path, f"has an unknown field at byte {position}")
        length, position = _varint(path, data, position)
        position += length
        if position > len(data):
            raise _bad(path, "has a field that reaches past its end")
        counts[field] = counts.get(field, 0) + 1
        if counts[field] > (MAX_PIECES if field == _PIECES else 1):
            raise _bad(path, f"contains more than {MAX_PIECES} pieces, or repeats another field")
    if _PIECES not in counts or _TRAINER_SPEC not in counts:
        raise _bad(path, "lacks its pieces or its trainer_spec")


def _varint(path: str, data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MAX_VARINT_BITS, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _bad(path, f"has a broken number at byte {position}")


def _bad(path: str, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_SENTENCEPIECE,
        f"{path} is not a SentencePiece model: it {what}. Export the tokenizer again, "
        "or upload its tokenizer.json in place of this file.",
        path,
    )
