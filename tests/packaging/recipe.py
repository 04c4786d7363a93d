"""The steps of the Containerfile."""

import json
import shlex
from dataclasses import dataclass, field

from tests.packaging.conftest import ROOT, asked

CONTAINERFILE = ROOT / "Containerfile"
_PARSE = """
import io, json, sys
from dockerfile_parse import DockerfileParser
parser = DockerfileParser(fileobj=io.BytesIO(sys.stdin.buffer.read()))
print(json.dumps([[one["instruction"], one["value"]] for one in parser.structure]))
"""


def read_steps() -> list[tuple[str, str]]:
    """Returns the instructions and their values, without comments."""
    instructions = asked(_PARSE, CONTAINERFILE.read_text())
    return [(name, value) for name, value in instructions if name != "COMMENT"]


def variables(value: str) -> dict[str, str]:
    """Returns the assignments of an `ENV` or `LABEL` instruction."""
    return dict(assignment.split("=", 1) for assignment in shlex.split(value))


@dataclass
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, str]:
        """Returns the last value of each instruction."""
        return dict(self.steps)

    @property
    def health_command(self) -> list[str]:
        value = self.last["HEALTHCHECK"]
        return json.loads(value[value.index("CMD") + len("CMD") :])


def read_stages() -> list[Stage]:
    stages: list[Stage] = []
    for name, value in read_steps():
        if name == "FROM":
            base, _, alias = value.partition(" AS ")
            stages.append(Stage(base, alias))
        elif stages:
            stages[-1].steps.append((name, value))
    return stages
