"""Writes docs/api.md, docs/events.md and docs/metrics.md.

With `--check`, it exits with 1 if one is outdated. tests/test_reference.py compares them, too.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import api, events, metrics

ROOT = Path(__file__).parents[2]
PAGES: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs" / "api.md": api.page,
    ROOT / "docs" / "events.md": events.page,
    ROOT / "docs" / "metrics.md": metrics.page,
}


def main() -> None:
    for path, page in PAGES.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(page())
        elif not path.exists() or path.read_text() != page():
            sys.exit(f"{path.relative_to(ROOT)} is outdated: python -m tools.reference")


if __name__ == "__main__":
    main()
