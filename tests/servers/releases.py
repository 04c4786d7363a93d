"""The next release: a copy of the package with another version, schema and message."""

import shutil
from pathlib import Path

import stoker
from stoker.store import schema
from tests.servers.migrations import EXPANDING, add_script

VERSION = "0.2.0"
REVISION = "0901"
_CHANGES = {
    "__init__.py": (f'"{stoker.__version__}"', f'"{VERSION}"'),
    # It writes and reads the new column.
    "store/tables/accounts.py": (
        "    name: Mapped[str]",
        '    hue: Mapped[str | None] = mapped_column(String(8), default="red")\n'
        "    name: Mapped[str]",
    ),
    # Both directions have a new field.
    "runtime/nodes/messages.py": (
        "    is_draining: bool = False\n",
        '    is_draining: bool = False\n    hue: str = "red"\n',
    ),
    "runtime/specification.py": (
        "    has_adapters: bool = False\n",
        '    has_adapters: bool = False\n    hue: str = "red"\n',
    ),
}


def next_release(folder: Path, script: str = EXPANDING) -> dict[str, str]:
    """Writes the package of the next release. Returns the environment that runs it.

    Args:
        script: body of its migration script.
    """
    package = folder / "stoker"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(stoker.__file__).parent, package, ignore=ignored)
    for name, (before, after) in _CHANGES.items():
        path = package / name
        content = path.read_text()
        assert content.count(before) == 1, name
        path.write_text(content.replace(before, after))
    add_script(package / "store/migrations", REVISION, schema.head(), script)
    # The working folder of this process has this release.
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
