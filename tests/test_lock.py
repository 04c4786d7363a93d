"""All packages that users may install are pinned, with the digest of every file."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\\n]+?))?"
    r" \\\n(?P<digests>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)",
    re.MULTILINE,
)
OF_GPUS = re.compile(r"nvidia-.*|cuda-.*|triton")
"""Packages of torch's GPU build, which a machine without a GPU does not have."""


def locked() -> dict[str, re.Match[str]]:
    text = (ROOT / "requirements.lock").read_text()
    entries = {canonicalize_name(match["name"]): match for match in ENTRY.finditer(text)}
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(entries) == len(lines), "a line of the lock has no digest"
    return entries


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    pins = dict(line.split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in pins.items()}


def test_the_lock_has_the_pins_and_nothing_else() -> None:
    pins = pinned()
    for name, entry in locked().items():
        if name in pins:
            assert entry["version"] == pins[name], f"{name}: make lock"
        elif not OF_GPUS.fullmatch(name):
            # The entry is for another system than the one on which the pins were made.
            assert entry["marker"], f"{name} is not pinned"
            assert not Marker(entry["marker"]).evaluate() or sys.platform != "linux"


def test_the_lock_has_all_that_an_install_takes() -> None:
    """The lock contains the project's requirements with all extras, and their requirements as
    installed here.
    """
    extras = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "all")]
    requirements = [
        *PROJECT["dependencies"],
        *(one for name in extras for one in PROJECT["optional-dependencies"][name]),
    ]
    waiting = [(Requirement(one), "") for one in requirements]
    entries, visited = locked(), set[tuple[str, str]]()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name == canonicalize_name(PROJECT["name"]):
            continue  # An extra that includes another extra, which the list contains itself.
        assert name in entries, f"{name}: make lock"
        for one in (*requirement.extras, ""):
            if (name, one) not in visited:
                visited.add((name, one))
                try:
                    theirs = metadata.requires(name) or []
                except metadata.PackageNotFoundError:
                    continue
                waiting += [(Requirement(line), one) for line in theirs]
    assert len(visited) > len(requirements)
