"""Result of one `stoker doctor` check."""

from dataclasses import dataclass
from enum import StrEnum


class DoctorVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class DoctorCheck:
    name: str
    status: DoctorVerdict
    found: str
    hint: str = ""
    """How to fix the problem."""


UPGRADE_HINT = (
    "Releases may differ during an upgrade, by one release. See COMPATIBILITY.md. Then finish it."
)
