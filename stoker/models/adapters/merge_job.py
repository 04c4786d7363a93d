"""What is told to the process that merges an adapter into the weights of its base."""

import msgspec

BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Of a number of the types that are merged, by their names in safetensors' headers."""


class Part(msgspec.Struct, frozen=True):
    """A tensor's place in a file."""

    path: str
    begin: int
    """Bytes from the beginning of the file."""
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class Change(msgspec.Struct, frozen=True):
    """What becomes of a tensor. Of a weight W of (out, in), or (in, out) where it is transposed:
    W + scale · B A, and each output's part of it then as long as its magnitude says, if any does.
    """

    down: Part | None = None
    """A, (rank, in)."""
    up: Part | None = None
    """B, (out, rank)."""
    scale: float = 1.0
    is_transposed: bool = False
    magnitude: Part | None = None
    """(out,)."""
    added: Part | None = None
    """(out,), of a bias: it gets scale · this added."""


class Tensor(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    """What it is written in."""
    shape: tuple[int, ...]
    nbytes: int
    """As it is written."""
    value: Part
    """What is to be changed, of the base or the adapter."""
    change: Change | None = None
    """None: nothing, it is copied as it is."""


_HEADER_BYTES = 1 << 12
"""Of a file beside its tensors and their names."""


class Written(msgspec.Struct, frozen=True):
    path: str
    tensors: list[Tensor]

    @property
    def nbytes(self) -> int:
        """At most."""
        names = sum(len(one.name) + 256 for one in self.tensors)
        return sum(one.nbytes for one in self.tensors) + 2 * names + _HEADER_BYTES


class Job(msgspec.Struct, frozen=True):
    files: list[Written]

    @property
    def nbytes(self) -> int:
        """Of all files, at most."""
        return sum(one.nbytes for one in self.files)


class Confinement(msgspec.Struct, frozen=True):
    """What the process that writes is left with: see `Walls` of stoker/sandbox/walls.py."""

    folder: str
    kept_back: str
    reads: list[str]
    writes: list[str]
    user: int | None
    memory_bytes: int
    file_bytes: int


class Task(msgspec.Struct, frozen=True):
    job: Job
    confinement: Confinement
