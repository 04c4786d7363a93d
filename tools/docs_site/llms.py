"""Writes docs/llms.txt, an index of the documentation for language models (llmstxt.org).

`python -m tools.docs_site.llms` writes the file. With `--check`, it exits with 1 if the file
differs. tests/test_docs_site.py compares it, too.
"""

import sys

from tools.docs_site.pages import DOCS, ROOT, config, navigation, sources, summary, title

FILE = DOCS / "llms.txt"
OPTIONAL = ("Benchmarks", "How it works")
"""Sections that a reader with little room can leave out."""


def text() -> str:
    """Returns the required content of docs/llms.txt."""
    sections: dict[str, list[str]] = {}
    pages = sources()
    for titles, page in navigation():
        path = pages[page]
        about = summary(path)
        line = f"- [{title(path)}]({page})" + (f": {about}" if about else "")
        is_optional = any(section in titles for section in OPTIONAL)
        section = "Optional" if is_optional else titles[0] if titles else title(path)
        sections.setdefault(section, []).append(line)
    sections["Optional"] = sections.pop("Optional")
    project = config()
    parts = [f"# {project['site_name']}", f"> {project['site_description']}"]
    parts += [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    expected = text()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(expected)
    elif FILE.read_text() != expected:
        sys.exit(f"{FILE.relative_to(ROOT)} is outdated: python -m tools.docs_site.llms")


if __name__ == "__main__":
    main()
