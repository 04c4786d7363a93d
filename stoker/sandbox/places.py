"""What any process of ours may read: the system's libraries, the interpreter, packages."""

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
        found += _importable(Path(entry or ".").absolute())
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
