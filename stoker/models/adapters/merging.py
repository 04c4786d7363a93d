"""Writes safetensors files with an adapter's changes merged into the weights.

The process that reads the headers has located and checked every number before. The arithmetic is in
float32, as in PEFT's `merge_and_unload`. A weight is read, changed and written some rows at a time.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.models.adapters.merge_job import MergeJob, TensorChange, TensorPosition, Written

Floats: TypeAlias = npt.NDArray[np.float32]

_BLOCK_BYTES = 32 << 20
"""Bytes of a weight in float32 that are in memory at once."""
_COPIED_BYTES = 8 << 20
_STORED: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def merge(job: MergeJob) -> None:
    """Writes the files of the job. Raises `OSError`."""
    for written in job.files:
        with Path(written.path).open("wb") as file:
            _write(written, file)


def _write(one: Written, file: IO[bytes]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in one.tensors:
        end = begin + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in one.tensors:
        if tensor.change is None:
            _copy(tensor.value, file)
            continue
        for block in _changed(tensor.value, tensor.change):
            file.write(_encoded(block, tensor.dtype))


def _copy(part: TensorPosition, file: IO[bytes]) -> None:
    with Path(part.path).open("rb") as source:
        source.seek(part.begin)
        remaining = part.nbytes
        while remaining:
            data = source.read(min(remaining, _COPIED_BYTES))
            if not data:
                raise EOFError(f"{Path(part.path).name} has become shorter.")
            file.write(data)
            remaining -= len(data)


def _changed(value: TensorPosition, change: TensorChange) -> Iterator[Floats]:
    """Yields the changed rows of a weight or bias in blocks."""
    if change.added is not None:
        yield _read(value) + _scaled(_read(change.added), change.scale)
        return
    factors = None
    if change.magnitude is not None:
        factors = _factors(value, change, _read(change.magnitude))
    for start, block in _summed(value, change):
        if factors is None:
            yield block
        elif change.is_transposed:
            yield block * factors
        else:
            yield block * factors[start : start + len(block), None]


def _factors(value: TensorPosition, change: TensorChange, magnitude: Floats) -> Floats:
    """Returns the factors that scale each output's weights to DoRA's length."""
    squares: list[Floats] = []
    for _, block in _summed(value, change):
        if change.is_transposed:
            block_squares = np.einsum("ij,ij->j", block, block)
            squares = [squares[0] + block_squares] if squares else [block_squares]
        else:
            squares.append(np.einsum("ij,ij->i", block, block))
    lengths = np.sqrt(np.concatenate(squares))
    return (magnitude / lengths).astype(np.float32)


def _summed(value: TensorPosition, change: TensorChange) -> Iterator[tuple[int, Floats]]:
    """Yields W + scale · B A in blocks of rows: the number of the first row, and (rows,
    columns).
    """
    if change.down is None or change.up is None:
        rows = value.shape[0] if value.shape else 1
        for start, stop in _blocks(rows, _columns(value.shape)):
            yield start, _read(value, start, stop)
        return
    down, up = _read(change.down), _read(change.up)
    for start, stop in _blocks(value.shape[0], value.shape[1]):
        part = (up @ down[:, start:stop]).T if change.is_transposed else up[start:stop] @ down
        yield start, _read(value, start, stop) + _scaled(part, change.scale)


def _scaled(value: Floats, scale: float) -> Floats:
    return np.multiply(value, np.float32(scale), dtype=np.float32)


def _blocks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK_BYTES // max(4 * columns, 1))
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


def _columns(shape: Sequence[int]) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) if shape else 1


def _read(part: TensorPosition, start: int = 0, stop: int | None = None) -> Floats:
    """Reads a tensor, or some of its rows, in float32. Raises `OSError`, `EOFError`."""
    rows = part.shape[0] if part.shape else 1
    stop = rows if stop is None else stop
    columns = _columns(part.shape)
    kind = np.dtype(_STORED[part.dtype])
    count = (stop - start) * columns
    with Path(part.path).open("rb") as file:
        file.seek(part.begin + start * columns * kind.itemsize)
        data = file.read(count * kind.itemsize)
    if len(data) != count * kind.itemsize:
        raise EOFError(f"{Path(part.path).name} has become shorter.")
    stored = np.frombuffer(data, dtype=kind)
    if part.dtype == "BF16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    shape = (stop - start, *part.shape[1:]) if part.shape else ()
    return stored.astype(np.float32).reshape(shape)


def _encoded(value: Floats, dtype: str) -> bytes:
    if dtype == "F32":
        return np.ascontiguousarray(value, dtype="<f4").tobytes()
    if dtype == "F16":
        return np.ascontiguousarray(value, dtype="<f2").tobytes()
    bits = np.ascontiguousarray(value, dtype="<f4").view(np.uint32)
    # Rounds to the nearest value, and ties to the even one.
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(value), np.uint32(0x7FC0), rounded).astype("<u2").tobytes()
