"""Result of one `stoker doctor` check."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    name: str
    status: Verdict
    found: str
    hint: str = ""
    """How to fix the problem."""
