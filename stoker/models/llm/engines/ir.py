"""A converted language model's folder: what is in it, for who writes and who reads it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

IR = "language_model.xml"
TRACED = "__module.model."
"""What the names of nodes begin with: the modules follow, as the model calls them."""
_FACTS = "language_model.json"


@dataclass(frozen=True)
class Facts:
    """What a runner has to know of a converted model."""

    max_length: int
    vocabulary: int

    def write(self, folder: Path) -> None:
        (folder / _FACTS).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Facts":
        return cls(**json.loads((folder / _FACTS).read_text()))
