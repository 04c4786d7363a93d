"""Messages to the process that merges an adapter into the weights of its base."""

import msgspec

BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes per number of the types that are merged, by their names in safetensors' headers."""


class TensorPosition(msgspec.Struct, frozen=True):
    """Position of a tensor in a file."""

    path: str
    begin: int
    """Offset in bytes from the beginning of the file."""
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class TensorChange(msgspec.Struct, frozen=True):
    """Change of a tensor. A weight W of (out, in), or (in, out) if transposed, becomes W + scale ·
    B A. With a magnitude, each output's part is then scaled to that length.
    """

    down: TensorPosition | None = None
    """Matrix A, (rank, in)."""
    up: TensorPosition | None = None
    """Matrix B, (out, rank)."""
    scale: float = 1.0
    is_transposed: bool = False
    magnitude: TensorPosition | None = None
    """Lengths of the outputs' weights, (out,)."""
    added: TensorPosition | None = None
    """Change of a bias, (out,): scale · this is added to it."""


class MergedTensor(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    """Type in the written file."""
    shape: tuple[int, ...]
    nbytes: int
    """Number of bytes in the written file."""
    value: TensorPosition
    """Original tensor, of the base or the adapter."""
    change: TensorChange | None = None
    """Change to apply. None means that the tensor is copied as it is."""


_HEADER_BYTES = 1 << 12
"""Bytes of a file in addition to its tensors and their names."""


class Written(msgspec.Struct, frozen=True):
    path: str
    tensors: list[MergedTensor]

    @property
    def nbytes(self) -> int:
        """Maximum number of bytes of the file."""
        names = sum(len(tensor.name) + 256 for tensor in self.tensors)
        return sum(tensor.nbytes for tensor in self.tensors) + 2 * names + _HEADER_BYTES


class MergeJob(msgspec.Struct, frozen=True):
    files: list[Written]

    @property
    def nbytes(self) -> int:
        """Maximum number of bytes of all files."""
        return sum(file.nbytes for file in self.files)


class Confinement(msgspec.Struct, frozen=True):
    """Restrictions of the writing process: see `Walls` of stoker/sandbox/walls.py."""

    folder: str
    kept_back: str
    reads: list[str]
    writes: list[str]
    user: int | None
    memory_bytes: int
    file_bytes: int


class MergeTask(msgspec.Struct, frozen=True):
    job: MergeJob
    confinement: Confinement
