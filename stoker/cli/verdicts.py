"""What `stoker doctor` says of one thing that it has looked at."""

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
    """What to do about it."""
