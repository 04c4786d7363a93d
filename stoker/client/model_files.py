"""Selects the files of a folder or repository that make up a model, by their paths.

The command line pushes these files, the server downloads them from a hub, and the console uploads
them. The rules are in `model_files.json`, which the console's build reads too
(frontend/src/lib/selection.ts).

Patterns cover a whole path or name, and ignore the case of ASCII letters. Folders that fit a
pattern of `folders` are skipped. A file is kept if its path fits a pattern of `kept` and none of
`never`. The first fitting pattern of `others` says why another file is not kept. The rules of
`spare` then apply in order to the files that are left. All conditions of a rule must hold:

- `beside`: one of these files is left. `{1}` is the pattern's first group.
- `anywhere`: a file that fits this pattern is left.
- `unless`: this file is not left.
"""

import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

import msgspec

GGUF = ".gguf"
SAFETENSORS = ".safetensors"
WEIGHT_SUFFIXES = frozenset({SAFETENSORS, GGUF})
INDEX_SUFFIX = ".safetensors.index.json"
PIPELINE = "model_index.json"
"""File in the top folder of a diffusers pipeline. Weights are in its subfolders."""
ADAPTER = "adapter_config.json"
"""Configuration of an adapter, which has no config.json."""


class _FolderRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    reason: str


class _FileRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    reason: str


class _SpareRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    reason: str
    beside: tuple[str, ...] = ()
    anywhere: str | None = None
    unless: str | None = None


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reasons: dict[str, str]
    folders: tuple[_FolderRule, ...]
    never: tuple[str, ...]
    kept: tuple[str, ...]
    others: tuple[_FileRule, ...]
    spare: tuple[_SpareRule, ...]


_RULES = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Rules)
PICKLED = _RULES.reasons["pickle"]


def why_left_out(path: str) -> str | None:
    """Returns why a file is not part of a model, or None if it may be."""
    *folders, _ = path.split("/")
    for folder in folders:
        if reason := why_folder_left_out(folder):
            return reason
    if _fits(_RULES.kept, path) and not _fits(_RULES.never, path):
        return None
    rule = next(rule for rule in _RULES.others if _match(rule.path, path))
    return _RULES.reasons[rule.reason]


def why_folder_left_out(name: str) -> str | None:
    """Returns why a folder of this name is skipped, or None."""
    rule = next((rule for rule in _RULES.folders if _match(rule.name, name)), None)
    return rule and _RULES.reasons[rule.reason]


def spare(paths: Iterable[str]) -> dict[str, str]:
    """Returns the files that the others make superfluous, each with the reason.

    Args:
        paths: paths of all files for which `why_left_out` returns None.
    """
    left, reasons = set(paths), dict[str, str]()
    for rule in _RULES.spare:
        if rule.unless in left:
            continue
        if rule.anywhere and not any(_match(rule.anywhere, path) for path in left):
            continue
        unused = {path for path in left if _is_spare(rule, path, left)}
        reasons |= dict.fromkeys(unused, _RULES.reasons[rule.reason])
        left -= unused
    return reasons


def _is_spare(rule: _SpareRule, path: str, left: Collection[str]) -> bool:
    match = _match(rule.path, path)
    if match is None or not rule.beside:
        return match is not None
    group = match[1] if match.re.groups else ""
    return any(name.replace("{1}", group) in left for name in rule.beside)


def _fits(patterns: Iterable[str], path: str) -> bool:
    return any(_match(pattern, path) for pattern in patterns)


def _match(pattern: str, text: str) -> re.Match[str] | None:
    return _compiled(pattern).fullmatch(text)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # JavaScript's patterns treat letters, digits and lines in this way.
    return re.compile(pattern, re.IGNORECASE | re.ASCII | re.DOTALL)
