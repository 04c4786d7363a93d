"""A checkout for a reader: this one, with environments that are installed already."""

from pathlib import Path

from tests.support.doc_blocks import ROOT
from tests.support.server import USERS

_OWN = {".git", ".data", ".venv", "dist"}
"""Entries that a reader's commands write, and those that the commands must not change."""


def linked(folder: Path) -> None:
    """Links the files of this checkout into a folder, with the users' environment as `.venv`.

    The environments are complete, so make installs nothing.
    """
    for entry in ROOT.iterdir():
        if entry.name not in _OWN:
            (folder / entry.name).symlink_to(entry)
    (folder / ".venv").symlink_to(Path(USERS).parents[1])
