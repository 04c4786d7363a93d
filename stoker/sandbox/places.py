"""What any process of ours may read: the system's libraries, the interpreter, packages."""

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
            *("filesystems", "vmstat", "zoneinfo", "devices", "modules", "sys", "driver"),
        )
    ),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPU_FACTS = ("/sys/devices", "/sys/class", "/sys/bus", "/sys/module", "/run/nvidia-persistenced")
_GPUS = ("nvidia", "kfd")
_PREFIX = ("bin", "lib", "lib32", "lib64", "share", "include", "etc", "ssl", "nvvm", "pyvenv.cfg")
_PACKAGES = ("site-packages", "dist-packages")


def facts() -> list[Path]:
    """Files that tell of the machine and of the process itself."""
    return [Path(one) for one in _FACTS]


def devices() -> list[Path]:
    return [Path(one) for one in _DEVICES]


@functools.cache
def gpus() -> tuple[Path, ...]:
    """Empty where there is none that engines compute on. To be asked first outside the walls,
    within which the folder cannot be listed.
    """
    found = [one for one in Path("/dev").iterdir() if one.name.startswith(_GPUS)]
    return (*found, Path("/dev/dri")) if found else ()


def gpu_facts() -> list[Path]:
    return [Path(one) for one in _GPU_FACTS]


@functools.cache
def libraries() -> tuple[Path, ...]:
    """Files and folders with code. It takes some milliseconds, once."""
    found = [*map(Path, _SYSTEM)]
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix)):
        found += inside(Path(prefix))
    for entry in sys.path:
        importable = [*_importable(Path(entry or ".").absolute())]
        found += importable
        found += (target for one in importable for target in _link_targets(one))
    # Others lie below one of these.
    real = dict.fromkeys(Path(os.path.realpath(one)) for one in found)
    return tuple(one for one in real if one.exists() and real.keys().isdisjoint(one.parents))


def inside(prefix: Path) -> list[Path]:
    """An interpreter's own folders: what else lies beside them is not its."""
    return [prefix / name for name in _PREFIX]


def _importable(entry: Path) -> Iterator[Path]:
    """All that is installed there; of a folder that is no such place, what can be imported."""
    if entry.name in _PACKAGES or not entry.is_dir():
        yield entry
        return
    suffixes = (*all_suffixes(), ".zip", ".dist-info", ".egg-info")
    try:
        found = [*entry.iterdir()]
    except OSError:
        return
    for path in found:
        # Not `Path.is_file`, which raises where a folder may not be entered.
        is_code = path.name.endswith(suffixes) or os.path.isfile(path / "__init__.py")  # noqa: PTH113
        if is_code and not path.name.startswith("."):
            yield path


def _link_targets(installed: Path) -> Iterator[Path]:
    """Where packages lead that were installed as symbolic links, by uv or Bazel for example.

    An installer links all of a package or nothing of it: of each package a few names are read. The
    package's folder is given where links in it lead, and not what lies beside it there.
    """
    for package in _packages(installed):
        if package.is_symlink():
            yield package.resolve()
        elif _has_links(package):
            yield from _targets_within(package)


def _packages(installed: Path) -> Iterator[Path]:
    """What was installed: the entries of a folder of packages, or the package itself."""
    if installed.name not in _PACKAGES:
        yield installed
        return
    with contextlib.suppress(OSError):
        yield from installed.iterdir()


def _has_links(folder: Path) -> bool:
    """Whether there are links among the first files of a folder. Folders of folders, as namespace
    packages are, are looked into.
    """
    entries = _entries(folder)
    if any(one.is_symlink() for one in entries):
        return True
    if any(one.is_file() for one in entries):
        return False
    return any(_has_links(Path(one.path)) for one in entries)


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
            # `…/numpy/linalg/x.py` leads to `/cache/numpy/linalg/x.py`: all of `/cache/numpy`.
            whole = target.parents[len(inner) - 1] if len(target.parents) > len(inner) else target
            is_whole = whole.name == package.name and target.parts[-len(inner) :] == inner
            roots.add(whole if is_whole else target)
    yield from roots


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return [*found]
    except OSError:
        return []


@functools.cache
def listed() -> tuple[Path, ...]:
    """Folders in which the interpreter looks for modules: their names are read anew whenever one
    has changed. Not the folder that the server was started in, which is a place for anything.
    """
    found = dict.fromkeys(Path(one).absolute() for one in sys.path if one)
    return tuple(one for one in found if one != Path.cwd() and one.is_dir())


def without(paths: Iterable[Path], kept_back: Path) -> list[Path]:
    """Those through which one does not come to a folder."""
    return [one for one in paths if not kept_back.is_relative_to(one)]
