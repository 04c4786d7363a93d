"""The walls, in the order in which a process puts them up around itself."""

import contextlib
import logging
import os
import resource
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.sandbox import identity, kernel, landlock, network, places, seccomp

log = logging.getLogger(__name__)

LEAST_PROCESSES = 1024
PROCESSES_PER_CORE = 16
"""Limit per core, including threads. Libraries start several times as many threads as the machine
has cores.
"""
OPEN_FILES = 8192
_HOME = "home"


@dataclass(frozen=True, kw_only=True)
class Walls:
    """Access that remains to a confined process."""

    folder: Path
    """Own folder of the process for all files that it writes, including a home folder for
    libraries.
    """
    kept_back: Path
    """The server's data folder. The process can access only its paths that are listed here."""
    user: int | None = None
    """User that the process becomes if root starts it."""
    reads: Sequence[Path] = ()
    """Readable paths, such as the model. Links in them are followed."""
    runs: Sequence[Path] = ()
    """Additional code, such as the interpreter of another environment."""
    writes: Sequence[Path] = ()
    gpu: bool = False
    has_child: bool = False
    """True if the process runs its model in a child process that connects to itself over the
    loopback.
    """
    file_bytes: int = resource.RLIM_INFINITY
    """Maximum size in bytes of a written file."""


@dataclass
class Standing:
    """Result of putting up the walls."""

    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Maps the name of a missing wall to the reason."""

    def put_up(self, name: str, wall: Callable[[], object]) -> bool:
        try:
            wall()
        except (OSError, ValueError) as error:
            self.missing[name] = str(error)
            return False
        return True


def confine(walls: Walls) -> Standing:
    """Puts up all walls that the machine supports. The process must have only one thread."""
    standing = Standing()
    # Applies until the process is confined. Otherwise the files in /proc that define its privileges
    # do not belong to it.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    # Other processes of the group are other replicas, and signals and priorities apply to whole
    # groups.
    with contextlib.suppress(PermissionError):
        os.setsid()
    _be_first_to_go()
    _set_home(walls.folder / _HOME)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower(resource.RLIMIT_FSIZE, walls.file_bytes)
    is_root = os.geteuid() == 0
    has_left, has_namespace = network.leave()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    allowed_files = _Given(walls)
    ruleset = _ruleset(walls, allowed_files, standing)
    if is_root:
        _change_user(walls, allowed_files, standing)
    else:
        # Drops the capabilities over its own namespaces.
        standing.put_up("capabilities", identity.drop_capabilities)
    is_alone = has_namespace or (is_root and os.geteuid() != 0)
    if is_alone:
        _lower(resource.RLIMIT_NPROC, most_processes())
    else:
        standing.missing["processes"] = "the kernel counts all processes of the user together"
    # Called again because a change of the user resets the signal.
    die_with_parent()
    if ruleset:
        standing.put_up("files", ruleset.enforce)
    if "files" in standing.missing:
        # Prevents other processes of this user from reading its memory.
        keep_to_itself()
    is_scoped = "files" not in standing.missing and landlock.scopes_signals()
    may_signal = is_scoped or (is_root and is_alone) or walls.has_child
    if not standing.put_up("system calls", lambda: _filter(walls, may_signal=may_signal)):
        if not has_left:
            standing.missing["network"] = "neither a namespace nor a filter is available"
        if not may_signal or (walls.has_child and not is_scoped and not (is_root and is_alone)):
            standing.missing["signals"] = "Landlock is too old, and no filter is available"
    for name, why in standing.missing.items():
        log.warning("sandbox wall missing, %s: %s", name, why)
    return standing


class _Given:
    """Files that a confined process may access."""

    def __init__(self, walls: Walls) -> None:
        self.libraries = places.without(places.libraries(), walls.kept_back)
        self.runs = [*walls.runs]
        self.reads = [*walls.reads, *(link for path in walls.reads for link in _linked(path))]

    def are_readable(self) -> bool:
        """Returns True if all files are readable without a capability."""
        return all(
            os.access(path, os.R_OK, effective_ids=True)
            for path in (*_walked(self.reads), *self.runs, *self.libraries)
        )


def _ruleset(walls: Walls, given: _Given, standing: Standing) -> landlock.Ruleset | None:
    try:
        ruleset = landlock.Ruleset(tcp=walls.has_child)
    except OSError:
        standing.missing["files"] = "this kernel has no Landlock"
        return None
    ruleset.allow(landlock.RUN, [*given.libraries, *given.runs])
    ruleset.allow(landlock.LIST, places.without(places.listed(), walls.kept_back))
    ruleset.allow(landlock.READ, [*given.reads, *places.facts()])
    ruleset.allow(landlock.DEVICE, places.devices())
    ruleset.allow(landlock.WRITE, [walls.folder, *walls.writes])
    if walls.gpu:
        ruleset.allow(landlock.DEVICE, places.gpus())
    if walls.gpu or walls.has_child:
        # gloo, in vLLM, reads the network interfaces there.
        ruleset.allow(landlock.READ, places.gpu_facts())
        ruleset.allow(landlock.WRITE, [Path("/dev/shm")])  # noqa: S108 - shared memory
    if walls.has_child:
        # The child's own entry in /proc is not this process's.
        ruleset.allow(landlock.READ, [Path("/proc")])
    return ruleset


def _change_user(walls: Walls, given: _Given, standing: Standing) -> None:
    user = walls.user
    if user is not None:
        for path in (walls.folder, *walls.writes):
            _hand_over(path, user)
        if standing.put_up("user", lambda: identity.become(user, reads=given.are_readable)):
            return
    else:
        standing.missing["user"] = "it runs as root because no other user is available"
    standing.put_up("capabilities", lambda: identity.drop_capabilities(reads=given.are_readable))


def _hand_over(path: Path, user: int) -> None:
    """Changes the owner of a folder and its content. Other replicas may be writing there at the
    same time, so links are not followed and files with several names are skipped.
    """
    for _, names, files, folder in os.fwalk(path, follow_symlinks=False):
        os.chown(folder, user, user)
        for name in (*names, *files):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if status.st_nlink == 1 and not stat.S_ISDIR(status.st_mode):
                os.chown(name, user, user, dir_fd=folder, follow_symlinks=False)


def _filter(walls: Walls, *, may_signal: bool) -> None:
    if not seccomp.is_known():
        raise OSError("no filter exists for this processor")
    families = seccomp.LOOPBACK if walls.has_child else seccomp.LOCAL
    seccomp.restrict(
        families,
        others=walls.has_child,
        signals=may_signal,
        memory_files=walls.gpu or walls.has_child,
    )


def _walked(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the paths and all content of folders."""
    for path in paths:
        yield path
        for folder, names, files in os.walk(path):
            yield from (Path(folder, name) for name in (*names, *files))


def _linked(path: Path) -> Iterator[Path]:
    """Yields the targets of links in a folder."""
    for entry in _walked([path]):
        if entry.is_symlink():
            yield Path(os.path.realpath(entry))


def seal() -> None:
    """Blocks new sockets for all threads. Must be called after the process has connected."""
    if seccomp.is_known():
        try:
            seccomp.seal()
        except OSError as error:
            log.warning("sandbox wall missing, sockets: %s", error)


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Sends this process a signal when its parent ends for any reason."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, by)


def adopt_orphans() -> None:
    """Makes this process the parent of processes that its child processes leave behind."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Returns the ids of this process's child processes. The process must have only one thread."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        # Some kernels do not provide this file.
        return []
    return [int(pid) for pid in text.split()]


def keep_to_itself() -> None:
    """Prevents other processes of the same user from reading this one's memory and environment."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def tell_nobody() -> None:
    """Disables the telemetry of libraries, and a file cache that other processes can read.

    Must be called before imports.
    """
    # OpenVINO and NNCF report their users over the network and store a user id in the home folder.
    # They continue to work without this module.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    # tiktoken caches each file in the machine's /tmp and reads it from there the next time.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""


def _be_first_to_go() -> None:
    """Makes the kernel kill a replica and not the server if memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        log.warning("out-of-memory score could not be set")


def _set_home(home: Path) -> None:
    """Sets a home folder for the files of libraries. It is deleted with the process's folder."""
    home.mkdir(mode=0o700, exist_ok=True)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ |= {"HOME": str(home), "TMPDIR": str(home)}
    # The user may have no name in the system.
    os.environ |= {"USER": "stoker", "LOGNAME": "stoker"}
    tempfile.tempdir = None
    os.chdir(home)


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    if most != resource.RLIM_INFINITY:
        value = min(value, most) if value != resource.RLIM_INFINITY else most
    resource.setrlimit(limit, (value, value))


def most_processes() -> int:
    """Returns the maximum number of processes of one replica, including its threads."""
    return max(LEAST_PROCESSES, PROCESSES_PER_CORE * (os.cpu_count() or 1))
