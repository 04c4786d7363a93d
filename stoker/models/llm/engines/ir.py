"""Contents of a converted language model's folder, shared by its writer and its readers."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

IR = "language_model.xml"
TRACED = "__module.model."
"""Prefix of the names of nodes. The path of the module in the model follows."""
_FACTS = "language_model.json"


@dataclass(frozen=True)
class Facts:
    """Properties of a converted model that its runner needs."""

    max_length: int
    vocabulary: int

    def write(self, folder: Path) -> None:
        (folder / _FACTS).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Facts":
        return cls(**json.loads((folder / _FACTS).read_text()))
