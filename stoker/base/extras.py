"""Shows the commands that add an extra or a missing package of Stoker to this installation."""

import contextlib
import functools
import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

NAME = "stoker"


@functools.cache
def install_command(extra: str) -> str:
    """Returns the command that adds an extra. Depends on how Stoker was installed."""
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        # Stoker runs from a folder without being installed.
        return f"pip install '{NAME}[{extra}]'"
    return _command(installed, extra, sys.prefix)


@functools.cache
def install_package_command(package: str) -> str:
    """Returns the command that installs a dependency of Stoker in the version that Stoker needs."""
    requirements: list[str] = []
    with contextlib.suppress(PackageNotFoundError):
        requirements = distribution(NAME).requires or []
    for requirement in requirements:
        wanted = requirement.partition(";")[0].strip()
        if re.split(r"[^\w.-]", wanted, maxsplit=1)[0] == package:
            return f"pip install '{wanted}'"
    return f"pip install {package}"


def _command(found: Distribution, extra: str, prefix: str) -> str:
    """
    Args:
        prefix: folder of the Python environment.
    """
    origin = _origin(found)
    url = str(origin.get("url", ""))
    pip = "uv pip install" if _text(found, "INSTALLER").strip() == "uv" else "pip install"
    if "dir_info" in origin:
        folder = Path(unquote(urlsplit(url).path))
        if Path(prefix).is_relative_to(folder) and pip.startswith("pip"):
            pip = f"{Path(prefix).relative_to(folder)}/bin/{pip}"
        pins = "-c constraints.txt " if (folder / "constraints.txt").is_file() else ""
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{pip} {pins}{editable}'.[{extra}]' (in the checkout of Stoker)"
    if "vcs_info" in origin:
        return f"{pip} '{NAME}[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}'"
    if url:
        return f"{pip} '{NAME}[{extra}] @ {url}'"
    return f"{pip} '{NAME}[{extra}]'"


def _origin(found: Distribution) -> dict[str, Any]:
    """Returns the installation source as defined by PEP 610. Empty for an installation from an
    index.
    """
    try:
        origin: Any = json.loads(_text(found, "direct_url.json") or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", origin) if isinstance(origin, dict) else {}


def _text(found: Distribution, name: str) -> str:
    return found.read_text(name) or ""
