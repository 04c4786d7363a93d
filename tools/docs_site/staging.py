"""Copies the pages and their pictures into one folder, as Zensical needs them.

Links between pages that lie elsewhere in the repository are adapted. A link to a file that is no
page, such as a source file, becomes plain text.
"""

import os
import re
import shutil
from pathlib import Path, PurePosixPath

from tools.docs_site.pages import DOCS, ROOT, sources

_FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)


def stage(target: Path) -> None:
    """Writes all pages and other files of docs/ into a new folder."""
    shutil.rmtree(target, ignore_errors=True)
    pages = sources()
    places = {path: page for page, path in pages.items()}
    for path in DOCS.rglob("*"):
        if path.is_file() and path not in places:
            places[path] = path.relative_to(DOCS).as_posix()
    for path, place in places.items():
        copy = target / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        if place in pages:
            copy.write_text(adapted(path.read_text(), path, places))
        else:
            shutil.copyfile(path, copy)


def adapted(text: str, path: Path, places: dict[Path, str]) -> str:
    """Returns a page's text with links for its place on the site."""
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_with_links(text[end : fence.start()], path, places), fence[0]]
        end = fence.end()
    return "".join([*parts, _with_links(text[end:], path, places)])


def _with_links(text: str, path: Path, places: dict[Path, str]) -> str:
    folder = PurePosixPath(places[path]).parent

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / match["path"]))
        if not target.exists():
            raise FileNotFoundError(f"{path.relative_to(ROOT)} links to {match['path']}")
        if target not in places:
            return match["text"][1:-1]
        place = os.path.relpath(places[target], folder)
        return f"{match['text']}({place}{match['anchor'] or ''})"

    return _LINK.sub(link, text)
