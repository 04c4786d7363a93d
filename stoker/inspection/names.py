"""Rules for the paths of uploaded files.

An invalid path is rejected here and not repaired. It becomes a file name on any machine that runs
the model, on any file system. Only names that mean the same everywhere are accepted.
"""

import re
from collections.abc import Iterable

from stoker.inspection.failure import FailureCode, InspectionError, quoted

MAX_PATH_CHARACTERS = 255
MAX_PART_CHARACTERS = 128
MAX_DEPTH = 4

# ASCII only: look-alike letters, direction marks and combining accents are rejected.
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]*[A-Za-z0-9_+-])?")
# Every repository on a Git-backed hub has this file. No code reads it.
_HIDDEN = frozenset({".gitattributes"})
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))]
)


def validate_path(path: str) -> None:
    """Rejects a path that a file of a model may not have.

    A path is one to four parts joined by `/`, at most 255 characters. A part has at most 128
    characters of `A-Z a-z 0-9 . _ + -`, begins with a letter or digit and does not end with a dot.
    It contains no `..` and is not a Windows device name (`CON`, `nul.txt`). The only hidden file is
    `.gitattributes`.

    Raises:
        InspectionError: `BAD_PATH`.
    """
    if not 0 < len(path) <= MAX_PATH_CHARACTERS:
        raise _bad_path(path, f"a path has 1 to {MAX_PATH_CHARACTERS} characters")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise _bad_path(path, f"a path has at most {MAX_DEPTH} parts")
    for position, part in enumerate(parts):
        if part in _HIDDEN and position == len(parts) - 1:
            continue
        _validate_part(path, part)


def refuse_clashes(paths: Iterable[str]) -> None:
    """Rejects paths that cannot coexist on every file system.

    These are two paths that differ only by case, in a file's or a folder's name, and a file with a
    path that is another file's folder.

    Raises:
        InspectionError: `PATH_CLASH`.
    """
    spellings: dict[str, str] = {}
    files = set(paths)
    for path in sorted(files):
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            other = spellings.setdefault(name.lower(), name)
            if other != name:
                raise _clash(path, other, "differ only in upper and lower case")
            if depth < len(parts) and name in files:
                raise _clash(path, name, "cannot be both a file and a folder")


def _validate_part(path: str, part: str) -> None:
    if not part:
        raise _bad_path(path, "a path is relative and has no empty part")
    if len(part) > MAX_PART_CHARACTERS:
        raise _bad_path(path, f"a part of a path has at most {MAX_PART_CHARACTERS} characters")
    if not _PART.fullmatch(part) or ".." in part:
        raise _bad_path(
            path,
            "each part uses A-Z a-z 0-9 . _ + - only, begins with a letter or digit, "
            "does not end with a dot and holds no '..'",
        )
    if part.split(".", 1)[0].lower() in _DEVICES:
        raise _bad_path(path, "a part must not be the name of a Windows device")


def _bad_path(path: str, rule: str) -> InspectionError:
    shown = quoted(path)
    return InspectionError(
        FailureCode.BAD_PATH, f"The path {shown} is not allowed: {rule}. Rename the file.", shown
    )


def _clash(path: str, other: str, why: str) -> InspectionError:
    return InspectionError(
        FailureCode.PATH_CLASH, f"{path} and {other} {why}. Rename or leave out one of them.", path
    )
