"""The pages of the site: their files, titles and summaries, and their places in the navigation."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = ROOT / "zensical.toml"
PLACES: Mapping[str, str] = {
    "README.md": "index.md",
    "SECURITY.md": "security_policy.md",
    "bench/README.md": "benchmarks.md",
}
"""Maps Markdown files outside docs/ to their pages, if those have other names."""
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r".*?[.:](?=\s|$)", re.DOTALL)


def config() -> dict[str, Any]:
    """Returns the site's configuration."""
    return tomllib.loads(CONFIG.read_text())["project"]


def sources() -> dict[str, Path]:
    """Maps each page of the site, such as `guide/artifacts.md`, to its file."""
    inside = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    outside = [*sorted(ROOT.glob("*.md")), ROOT / "bench" / "README.md"]
    names = {path.relative_to(ROOT).as_posix(): path for path in outside}
    return inside | {PLACES.get(name, name.lower()): path for name, path in names.items()}


def navigation() -> list[tuple[tuple[str, ...], str]]:
    """Returns the pages in the order of the navigation, each with the titles of its sections."""
    return [*_entries(config()["nav"], ())]


def _entries(items: list[Any], titles: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for item in items:
        if isinstance(item, str):
            yield titles, item
            continue
        for title, children in item.items():
            yield from _entries(children, (*titles, title))


def problems() -> list[str]:
    """Returns what is wrong with the navigation: missing, unknown and repeated pages."""
    listed = [page for _, page in navigation()]
    pages = sources()
    return [
        *(f"{page} is missing from the navigation" for page in pages if page not in listed),
        *(f"{page} of the navigation does not exist" for page in listed if page not in pages),
        *(f"{page} is listed twice" for page in {*listed} if listed.count(page) > 1),
    ]


def title(path: Path) -> str:
    """Returns the first heading of a page."""
    heading, _, _ = path.read_text().partition("\n")
    if not heading.startswith("# "):
        raise ValueError(f"{path} does not begin with a heading")
    return heading.removeprefix("# ")


def summary(path: Path) -> str:
    """Returns the first sentence of a page, without links, or an empty text if the page begins
    with a command, a list or a table.
    """
    _, _, body = path.read_text().partition("\n")
    paragraph = " ".join(body.strip().partition("\n\n")[0].split())
    sentence = _SENTENCE.match(_LINK.sub(r"\1", paragraph))
    if not sentence or not paragraph[0].isalpha():
        return ""
    return sentence[0].rstrip(".:") + "."
