"""Files that every Stoker process may read: the system's libraries, the interpreter and
packages.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import all_suffixes
from pathlib import Path

_SYSTEM = (
    *(
        "/usr",
        "/lib",
        "/lib32",
        "/lib64",
        "/bin",
        "/sbin",
        "/opt/cuda",
        "/opt/nvidia",
        "/nix/store",
    ),
    *(
        f"/etc/{name}"
        for name in (
            *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "alternatives"),
            *("localtime", "timezone", "fonts", "OpenCL", "vulkan", "ssl/openssl.cnf"),
            *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "gai.conf", "protocols"),
            *("magic", "mime.types", "locale.alias", "debian_version", "os-release"),
        )
    ),
)
_FACTS = (
    *("/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm"),
    *(
        f"/proc/{name}"
        for name in (
            *("self", "thread-self", "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version"),
            *("filesystems", "vmstat", "zoneinfo", "devices", "modules", "sys"),
        )
    ),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PREFIX = ("bin", "lib", "lib32", "lib64", "share", "include", "etc", "ssl", "nvvm", "pyvenv.cfg")
_PACKAGES = ("site-packages", "dist-packages")


def facts() -> list[Path]:
    """Returns files with information about the machine and about the process itself."""
    return [Path(name) for name in _FACTS]


def devices() -> list[Path]:
    return [Path(name) for name in _DEVICES]


@functools.cache
def libraries() -> tuple[Path, ...]:
    """Returns files and folders with code. The first call takes some milliseconds."""
    paths = [*map(Path, _SYSTEM)]
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix)):
        paths += inside(Path(prefix))
    for entry in sys.path:
        importable = [*_importable(Path(entry or ".").absolute())]
        paths += importable
        paths += (target for path in importable for target in _link_targets(path))
    # All other paths are below one of these.
    real = dict.fromkeys(Path(os.path.realpath(path)) for path in paths)
    return tuple(path for path in real if path.exists() and real.keys().isdisjoint(path.parents))


def inside(prefix: Path) -> list[Path]:
    """Returns an interpreter's own folders. Other content of the prefix does not belong to it."""
    return [prefix / name for name in _PREFIX]


def _importable(entry: Path) -> Iterator[Path]:
    """Yields the content of a package folder. For other folders yields only importable files and
    packages.
    """
    if entry.name in _PACKAGES or not entry.is_dir():
        yield entry
        return
    suffixes = (*all_suffixes(), ".zip", ".dist-info", ".egg-info")
    try:
        entries = [*entry.iterdir()]
    except OSError:
        return
    for path in entries:
        # `Path.is_file` raises an error if a folder may not be entered.
        is_code = path.name.endswith(suffixes) or os.path.isfile(path / "__init__.py")  # noqa: PTH113
        if is_code and not path.name.startswith("."):
            yield path


def _link_targets(installed: Path) -> Iterator[Path]:
    """Yields the targets of packages that were installed as symbolic links, for example by uv or
    Bazel.

    An installer links all files of a package or none, so only a few files of each package are read.
    Yields only the package's own target folder, and not other content next to it.
    """
    for package in _packages(installed):
        if package.is_symlink():
            yield package.resolve()
        elif _has_links(package):
            yield from _targets_within(package)


def _packages(installed: Path) -> Iterator[Path]:
    """Yields the entries of a folder of packages, or the package itself."""
    if installed.name not in _PACKAGES:
        yield installed
        return
    with contextlib.suppress(OSError):
        yield from installed.iterdir()


def _has_links(folder: Path) -> bool:
    """Returns True if the first files of a folder include links. Searches subfolders if the folder
    has no files, as in namespace packages.
    """
    entries = _entries(folder)
    if any(item.is_symlink() for item in entries):
        return True
    if any(item.is_file() for item in entries):
        return False
    return any(_has_links(Path(item.path)) for item in entries)


def _targets_within(package: Path) -> Iterator[Path]:
    roots: set[Path] = set()
    folders = [package]
    while folders:
        for entry in _entries(folders.pop()):
            if not entry.is_symlink():
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                continue
            target = Path(os.path.realpath(entry.path))
            inner = Path(entry.path).relative_to(package).parts
            # `…/numpy/linalg/x.py` leads to `/cache/numpy/linalg/x.py`, so all of `/cache/numpy` is
            # allowed.
            whole = target.parents[len(inner) - 1] if len(target.parents) > len(inner) else target
            is_whole = whole.name == package.name and target.parts[-len(inner) :] == inner
            roots.add(whole if is_whole else target)
    yield from roots


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except OSError:
        return []


@functools.cache
def listed() -> tuple[Path, ...]:
    """Returns folders that the interpreter searches for modules. It lists a folder again after each
    change. Excludes the server's working directory, which may contain any files.
    """
    folders = dict.fromkeys(Path(path).absolute() for path in sys.path if path)
    return tuple(path for path in folders if path != Path.cwd() and path.is_dir())


def without(paths: Iterable[Path], kept_back: Path) -> list[Path]:
    """Returns the paths that do not contain the folder `kept_back`."""
    return [path for path in paths if not kept_back.is_relative_to(path)]
