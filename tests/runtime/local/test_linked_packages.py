"""Packages that are installed as symbolic links can be imported within the walls. Files next to
their targets cannot be read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.sandbox import landlock, places

PROGRAM = """\
import importlib, json, sys
from pathlib import Path
packages, own, kept_back, *secrets = map(Path, sys.argv[1:-1])
user = int(sys.argv[-1]) if sys.argv[-1] else None
sys.path.insert(0, str(packages))
from stoker.sandbox import walls
walls.confine(walls.Walls(folder=own, kept_back=kept_back, user=user))
found = {}
for name in ("by_files", "by_folder", "module", "names.inner", "plain"):
    found[name] = importlib.import_module(name).VALUE
for secret in secrets:
    try:
        found[secret.name] = secret.read_text()
    except OSError as error:
        found[secret.name] = type(error).__name__
print(json.dumps(found))
"""


def written(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Creates a folder of packages as installers that link to a cache do."""
    cache, site_packages = tmp_path / "cache", tmp_path / "env" / "site-packages"
    package = "from by_files.sub.deep import VALUE"
    for name, content in {
        "a/by_files/__init__.py": package,
        "a/by_files/sub/__init__.py": "",
        "a/by_files/sub/deep.py": "from pathlib import Path\n"
        "VALUE = (Path(__file__).parent / 'data.txt').read_text()",
        "a/by_files/sub/data.txt": "data",
        "d/inner/__init__.py": "VALUE = 4",
    }.items():
        target = written(cache / name, content)
        # uv with link-mode=symlink: the folders are real and each file is a link.
        link = site_packages / Path(name).relative_to("a") if name[0] == "a" else None
        if link:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
    written(cache / "b/other_name/__init__.py", "VALUE = 2")
    # Bazel: whole folders are links, also within namespace packages.
    (site_packages / "by_folder").symlink_to(cache / "b" / "other_name")
    (site_packages / "names").mkdir()
    (site_packages / "names" / "inner").symlink_to(cache / "d" / "inner")
    (site_packages / "module.py").symlink_to(written(cache / "c" / "module.py", "VALUE = 3"))
    written(site_packages / "plain" / "__init__.py", "VALUE = 5")
    return site_packages


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("user", ["", "61234"])
def test_are_imported_within_the_walls(tmp_path: Path, packages: Path, user: str) -> None:
    if user and os.geteuid() != 0:
        pytest.skip("root alone becomes another user")
    own_folder, data = tmp_path / "own", tmp_path / "data"
    own_folder.mkdir()
    data.mkdir()
    secrets = [
        written(tmp_path / "cache" / place / f"secret-{place}", "seen") for place in ("a", "b", "c")
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, packages, own_folder, data, *secrets, user],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    refused = {secret.name: "PermissionError" for secret in secrets}
    values = {"by_files": "data", "by_folder": 2, "module": 3, "names.inner": 4, "plain": 5}
    assert results == values | refused


def test_folders_beside_a_package_are_not_given(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(packages)])
    places.libraries.cache_clear()
    try:
        readable = set(places.libraries())
    finally:
        places.libraries.cache_clear()
    cache = packages.parents[1] / "cache"
    linked = {path.relative_to(cache) for path in readable if path.is_relative_to(cache)}
    assert linked == {
        *map(Path, ("a/by_files", "b/other_name", "c/module.py", "d/inner")),
    }
