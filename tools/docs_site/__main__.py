"""Builds the site with Zensical, into .data/site: `make docs`.

Fails if a page is missing from the navigation, if Zensical warns, for example of a broken link, or
if a page loads something from another host.
"""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from tools.docs_site.pages import CONFIG, ROOT, config, problems, sources
from tools.docs_site.staging import stage

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Maps elements that load something to the attribute with its address."""
_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^"')\s]+""")


class LoadedAddresses(HTMLParser):
    """Collects the addresses on other hosts that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADING.get(tag, "")) or ""
        if re.match(r"(https?:)?//", address):
            self.addresses.append(address)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Returns each address on another host that a page or style sheet loads, with its file."""
    found: list[str] = []
    for path in sorted(site.rglob("*.html")):
        parser = LoadedAddresses()
        parser.feed(path.read_text())
        found += [f"{path.relative_to(site)}: {address}" for address in parser.addresses]
    for path in sorted(site.rglob("*.css")):
        found += [f"{path.relative_to(site)}: {use}" for use in _STYLE.findall(path.read_text())]
    return found


def build() -> Path:
    """Builds the site. Returns its folder."""
    project = config()
    pages, site = ROOT / project["docs_dir"], ROOT / project["site_dir"]
    stage(pages)
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run([*command, "--config-file", CONFIG], cwd=ROOT, check=False)  # noqa: S603
    if done.returncode:
        sys.exit("Zensical has not built the site. Correct what it reports above.")
    # llms.txt names the Markdown of the pages.
    for page in sources():
        shutil.copyfile(pages / page, site / page)
    return site


def main() -> None:
    if wrong := problems():
        sys.exit("\n".join([*wrong, f"Correct the navigation in {CONFIG.name}."]))
    site = build()
    if loaded := loaded_from_elsewhere(site):
        sys.exit("\n".join(["The site loads from other hosts:", *loaded]))
    print(f"Built {site.relative_to(ROOT)}. Show it: {sys.executable} -m http.server -d {site}")  # noqa: T201


if __name__ == "__main__":
    main()
