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
"""Threads count: libraries start as many as there are cores, several times over."""
OPEN_FILES = 8192
_HOME = "home"


@dataclass(frozen=True, kw_only=True)
class Walls:
    """What one process is left with."""

    folder: Path
    """Its own, for all that it writes; a home for libraries below it."""
    kept_back: Path
    """The server's data: of what lies there, only what is named here is given."""
    user: int | None = None
    """Whom it becomes, where root starts it."""
    reads: Sequence[Path] = ()
    """Its model, among others. Links in it are followed."""
    runs: Sequence[Path] = ()
    """Further code: an interpreter of another environment."""
    writes: Sequence[Path] = ()
    gpu: bool = False
    has_child: bool = False
    """It runs its model in a process below it, which speaks to itself over the loopback."""
    file_bytes: int = resource.RLIM_INFINITY
    """The largest file that it may write."""


@dataclass
class Standing:
    """Which walls stand, as far as they have been tried."""

    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Name of a wall → why it is not there."""

    def put_up(self, name: str, wall: Callable[[], object]) -> bool:
        try:
            wall()
        except (OSError, ValueError) as error:
            self.missing[name] = str(error)
            return False
        return True


def confine(walls: Walls) -> Standing:
    """Put up all walls that there can be. The process has one thread still."""
    standing = Standing()
    # Until it is confined: files that say what it may be are not its own otherwise.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    # Others of its group are other replicas: signals and priorities are given to whole groups.
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
    given = _Given(walls)
    ruleset = _ruleset(walls, given, standing)
    if is_root:
        _change_user(walls, given, standing)
    else:
        # Those that it has over its own namespaces.
        standing.put_up("capabilities", identity.drop_capabilities)
    is_alone = has_namespace or (is_root and os.geteuid() != 0)
    if is_alone:
        _lower(resource.RLIMIT_NPROC, most_processes())
    else:
        standing.missing["processes"] = "the kernel counts all of the user's together"
    # The signal is forgotten when the user changes.
    die_with_parent()
    if ruleset:
        standing.put_up("files", ruleset.enforce)
    if "files" in standing.missing:
        # Nobody else of this user may look into its memory.
        keep_to_itself()
    is_scoped = "files" not in standing.missing and landlock.scopes_signals()
    may_signal = is_scoped or (is_root and is_alone) or walls.has_child
    if not standing.put_up("system calls", lambda: _filter(walls, may_signal=may_signal)):
        if not has_left:
            standing.missing["network"] = "there is no namespace for it and no filter"
        if not may_signal or (walls.has_child and not is_scoped and not (is_root and is_alone)):
            standing.missing["signals"] = "Landlock is too old, and there is no filter"
    for name, why in standing.missing.items():
        log.warning("sandbox wall missing, %s: %s", name, why)
    return standing


class _Given:
    """The files that it is to have."""

    def __init__(self, walls: Walls) -> None:
        self.libraries = places.without(places.libraries(), walls.kept_back)
        self.runs = [*walls.runs]
        self.reads = [*walls.reads, *(link for one in walls.reads for link in _linked(one))]

    def are_readable(self) -> bool:
        """Without a capability."""
        return all(
            os.access(one, os.R_OK, effective_ids=True)
            for one in (*_walked(self.reads), *self.runs, *self.libraries)
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
        # gloo, in vLLM, looks for the network's interfaces there.
        ruleset.allow(landlock.READ, places.gpu_facts())
        ruleset.allow(landlock.WRITE, [Path("/dev/shm")])  # noqa: S108 - shared memory
    if walls.has_child:
        # Its own in there is not this process's.
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
        standing.missing["user"] = "it is root, for want of users that it could be"
    standing.put_up("capabilities", lambda: identity.drop_capabilities(reads=given.are_readable))


def _hand_over(path: Path, user: int) -> None:
    """Give a folder and what lies in it to a user. Others of its kind may be writing there now:
    no link is followed, and nothing given away that has another name elsewhere.
    """
    for _, names, files, folder in os.fwalk(path, follow_symlinks=False):
        os.chown(folder, user, user)
        for name in (*names, *files):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if found.st_nlink == 1 and not stat.S_ISDIR(found.st_mode):
                os.chown(name, user, user, dir_fd=folder, follow_symlinks=False)


def _filter(walls: Walls, *, may_signal: bool) -> None:
    if not seccomp.is_known():
        raise OSError("there is no filter for this processor")
    families = seccomp.LOOPBACK if walls.has_child else seccomp.LOCAL
    seccomp.restrict(
        families,
        others=walls.has_child,
        signals=may_signal,
        memory_files=walls.gpu or walls.has_child,
    )


def _walked(paths: Iterable[Path]) -> Iterator[Path]:
    """Files and folders, and all that lies in the folders."""
    for path in paths:
        yield path
        for folder, names, files in os.walk(path):
            yield from (Path(folder, name) for name in (*names, *files))


def _linked(path: Path) -> Iterator[Path]:
    """Where links in a folder lead."""
    for one in _walked([path]):
        if one.is_symlink():
            yield Path(os.path.realpath(one))


def seal() -> None:
    """It is connected: no further sockets, for none of its threads."""
    if seccomp.is_known():
        try:
            seccomp.seal()
        except OSError as error:
            log.warning("sandbox wall missing, sockets: %s", error)


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Send this process a signal when the one that forked it ends, however it ends."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, by)


def adopt_orphans() -> None:
    """Become the parent of what a process below this one leaves behind when it ends."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """The processes of which this one, with one thread, is the parent."""
    try:
        found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        # Not all kernels tell.
        return []
    return [int(one) for one in found.split()]


def keep_to_itself() -> None:
    """Let no other process of the same user read this one's memory and environment."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def tell_nobody() -> None:
    """Keep libraries from telling their makers that they are used, and others what they read.

    To be called before imports.
    """
    # OpenVINO and NNCF count their users over the network, and number them in the home folder.
    # They go on where this module is missing.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    # tiktoken keeps a copy of each file in the machine's /tmp, and reads that the next time.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""


def _be_first_to_go() -> None:
    """Where memory runs out, the kernel is to end a replica and not the server."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        log.warning("out-of-memory score could not be set")


def _set_home(home: Path) -> None:
    """Where libraries put what they like: it goes with the process."""
    home.mkdir(mode=0o700, exist_ok=True)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ |= {"HOME": str(home), "TMPDIR": str(home)}
    # The user may have no name to be looked up.
    os.environ |= {"USER": "stoker", "LOGNAME": "stoker"}
    tempfile.tempdir = None
    os.chdir(home)


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    if most != resource.RLIM_INFINITY:
        value = min(value, most) if value != resource.RLIM_INFINITY else most
    resource.setrlimit(limit, (value, value))


def most_processes() -> int:
    """Of one replica, its threads included."""
    return max(LEAST_PROCESSES, PROCESSES_PER_CORE * (os.cpu_count() or 1))
