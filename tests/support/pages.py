"""The pages of the guide, in the order of its index."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def guide_pages() -> list[Path]:
    """Returns the pages that docs/guide.md links, in its order."""
    index = (DOCS / "guide.md").read_text()
    return [DOCS / target for target in re.findall(r"\]\((guide/[\w-]+\.md)\)", index)]


def guide() -> str:
    """Returns the text of all pages of the guide."""
    return "\n".join(page.read_text() for page in guide_pages())
