"""Shows the commands that add an extra or a missing package of Stoker to this installation."""

import functools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

NAME = "stoker"
_SOURCES = Path(__file__).parents[2]
"""Folder of the checkout, if Stoker runs from one without being installed."""


@functools.cache
def install_command(extra: str) -> str:
    """Returns the shell command that adds an extra to this installation. It works from any folder.

    The command depends on how Stoker was installed: from a checkout, a file, a repository or an
    index. If the file or folder no longer exists, the command names the extra's packages.
    """
    stoker = _stoker()
    if stoker is None:
        return pip_install(_of_folder(_SOURCES, extra, is_editable=True))
    origin = _origin(stoker)
    url = str(origin.get("url", ""))
    folder = _local(url)
    if folder is not None and not folder.exists():
        packages = [*_packages(stoker, extra)]
        return pip_install(shlex.join(packages or [f"{NAME}[{extra}]"]))
    if folder is not None and "dir_info" in origin:
        is_editable = bool(origin["dir_info"].get("editable"))
        return pip_install(_of_folder(folder, extra, is_editable=is_editable))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        commit = f"@{vcs['commit_id']}" if vcs.get("commit_id") else ""
        url = f"{vcs.get('vcs', 'git')}+{url}{commit}"
    source = f" @ {url}" if url else ""
    return pip_install(shlex.quote(f"{NAME}[{extra}]{source}"))


@functools.cache
def install_package_command(package: str) -> str:
    """Returns the command that installs a dependency of Stoker in the version that Stoker needs."""
    stoker = _stoker()
    for requirement in (stoker and stoker.requires) or []:
        wanted = requirement.partition(";")[0].strip()
        if re.split(r"[^\w.-]", wanted, maxsplit=1)[0] == package:
            return pip_install(shlex.quote(wanted))
    return pip_install(shlex.quote(package))


def pip_install(arguments: str) -> str:
    """Returns the command that installs packages into the environment of this process.

    Args:
        arguments: arguments of `pip install`, quoted for a shell.
    """
    python = shlex.quote(sys.executable)
    if find_spec("pip"):
        return f"{python} -m pip install {arguments}"
    stoker = _stoker()
    is_by_uv = stoker is not None and (stoker.read_text("INSTALLER") or "").strip() == "uv"
    if is_by_uv or not find_spec("ensurepip"):
        return f"uv pip install --python {python} {arguments}"
    return f"{python} -m ensurepip && {python} -m pip install {arguments}"


def _stoker() -> Distribution | None:
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        return None


def _of_folder(folder: Path, extra: str, *, is_editable: bool) -> str:
    """Returns the arguments that install Stoker with an extra from a folder, with its pins."""
    pins = folder / "constraints.txt"
    arguments = ["-c", str(pins)] if pins.is_file() else []
    arguments += ["-e"] if is_editable else []
    return shlex.join([*arguments, f"{folder}[{extra}]"])


def _packages(stoker: Distribution, extra: str) -> Iterator[str]:
    """Yields the requirements of an extra, and of the extras that it includes."""
    for requirement in stoker.requires or []:
        wanted, _, marker = requirement.partition(";")
        if re.search(rf"\bextra == ['\"]{re.escape(extra)}['\"]", marker):
            included = re.fullmatch(rf"{NAME}\[(.+)\]", wanted.strip())
            if included is None:
                yield wanted.strip()
            else:
                for name in included[1].split(","):
                    yield from _packages(stoker, name.strip())


def _local(url: str) -> Path | None:
    """Returns the path of a file URL. Returns None for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _origin(stoker: Distribution) -> dict[str, Any]:
    """Returns the installation source as defined by PEP 610. Empty for an installation from an
    index.
    """
    try:
        origin: Any = json.loads(stoker.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", origin) if isinstance(origin, dict) else {}
