"""Writes what the types of the console are made from, frontend/openapi.json."""

import json
from pathlib import Path

from stoker.server.app import create_app

PATH = Path(__file__).parents[1] / "frontend" / "openapi.json"


def text() -> str:
    """The server's own document, a line a member, so that a change shows as one."""
    return json.dumps(create_app().openapi(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    PATH.write_text(text())


if __name__ == "__main__":
    main()
