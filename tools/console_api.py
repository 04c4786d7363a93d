"""Writes frontend/openapi.json, the source of the console's types."""

import json
from pathlib import Path

from stoker.server.app import create_app

PATH = Path(__file__).parents[1] / "frontend" / "openapi.json"


def text() -> str:
    """Returns the server's OpenAPI document with one member per line, so that diffs stay small."""
    return json.dumps(create_app().openapi(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    PATH.write_text(text())


if __name__ == "__main__":
    main()
