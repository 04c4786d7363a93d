"""Messages of the program that checks GPUs for `stoker doctor`."""

from typing import Literal

import msgspec

from stoker.wire.protocol import Cell

GpuVerdict = Literal["ok", "warn", "fail"]


class GpuCheck(msgspec.Struct, frozen=True):
    """Result of one check: a line of JSON."""

    name: str
    status: GpuVerdict
    found: str
    hint: str = ""


class GpuQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the program."""

    cell: Cell
    """Resources of the confined children, like those of a replica."""
    is_strict: bool = False
    """True if replicas may have no openings."""
    memory_share: float = 0.9
    """Fraction of each GPU's memory that replicas may use."""
