"""Writes the generated files of the client, or compares them."""

import argparse
import sys

from tools.client_api.files import CLIENT, sources


def outdated() -> list[str]:
    """Returns the generated files that differ from the OpenAPI document or are missing."""
    return [
        name
        for name, source in sources().items()
        if not (CLIENT / name).is_file() or (CLIENT / name).read_text() != source
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if parser.parse_args().check:
        names = outdated()
        for name in names:
            print(f"stoker/client/{name} is outdated: run `python -m tools.client_api`")
        return 1 if names else 0
    for name, source in sources().items():
        path = CLIENT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
