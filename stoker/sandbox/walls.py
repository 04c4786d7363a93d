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

from stoker.sandbox import gpu_places, identity, kernel, landlock, network, places, seccomp
from stoker.sandbox.openings import Opening, Wall, left_out

log = logging.getLogger(__name__)

LEAST_PROCESSES = 1024
PROCESSES_PER_CORE = 16
"""Limit per core, including threads. Libraries start several times as many threads as the machine
has cores.
"""
OPEN_FILES = 8192
_HOME = "home"
_LEFT_OUT = "left out for the GPU's driver"


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
    openings: Sequence[Opening] = ()
    """Exceptions that this machine's GPU driver needs."""

    def stands(self, wall: Wall) -> bool:
        """Returns True if the wall is put up, possibly with openings."""
        return wall not in left_out(self.openings)

    def opened(self, wall: Wall) -> list[Opening]:
        """Returns the openings in a wall that stands."""
        return [opening for opening in self.openings if opening.wall is wall and opening.item]


@dataclass
class Standing:
    """Result of putting up the walls."""

    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Maps the name of a missing wall to the reason."""

    def note(self, name: str, why: str) -> None:
        """Stores why a wall is missing, unless it was left out on purpose."""
        self.missing.setdefault(name, why)

    def put_up(self, name: str, wall: Callable[[], object]) -> bool:
        try:
            wall()
        except (OSError, ValueError) as error:
            self.note(name, str(error))
            return False
        return True


def confine(walls: Walls) -> Standing:
    """Puts up all walls that the machine supports. The process must have only one thread."""
    standing = Standing(dict.fromkeys(sorted(left_out(walls.openings)), _LEFT_OUT))
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
    if walls.stands(Wall.LIMITS):
        _limit_files(walls)
    is_root = os.geteuid() == 0
    has_left, has_namespace = _leave_network(walls)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    allowed_files = _Given(walls)
    ruleset = _ruleset(walls, allowed_files, standing)
    if is_root:
        _change_user(walls, allowed_files, standing)
    elif walls.stands(Wall.CAPABILITIES):
        # Drops the capabilities over its own namespaces.
        standing.put_up(Wall.CAPABILITIES, identity.drop_capabilities)
    is_alone = has_namespace or (is_root and os.geteuid() != 0)
    if not is_alone:
        standing.note(Wall.PROCESSES, "the kernel counts all processes of the user together")
    elif walls.stands(Wall.PROCESSES):
        _lower(resource.RLIMIT_NPROC, most_processes())
    # Called again because a change of the user resets the signal.
    die_with_parent()
    is_scoped = False
    if ruleset:
        _allow_thread_names(ruleset, walls)
        is_scoped = standing.put_up(Wall.FILES, ruleset.enforce) and ruleset.scopes_signals
    _hide(walls, standing)
    may_signal = (
        is_scoped or (is_root and is_alone) or walls.has_child or not walls.stands(Wall.SIGNALS)
    )
    if not walls.stands(Wall.SYSTEM_CALLS) or not standing.put_up(
        Wall.SYSTEM_CALLS, lambda: _filter(walls, may_signal=may_signal)
    ):
        if not has_left:
            standing.note(Wall.NETWORK, "neither a namespace nor a filter is available")
        if not may_signal or (walls.has_child and not is_scoped and not (is_root and is_alone)):
            standing.note(Wall.SIGNALS, "Landlock is too old, and no filter is available")
    for name, why in standing.missing.items():
        log.warning("sandbox wall missing, %s: %s", name, why)
    for opening in walls.openings:
        if opening.item:
            log.warning("sandbox wall opened for the GPU: %s", opening)
    return standing


def _limit_files(walls: Walls) -> None:
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    # CUDA keeps memory of the host in memory files, to which the limit applies.
    least = machine_bytes() if walls.gpu else 0
    _lower(resource.RLIMIT_FSIZE, max(walls.file_bytes, least))


def _leave_network(walls: Walls) -> tuple[bool, bool]:
    """Returns the result of `network.leave`."""
    if walls.stands(Wall.NAMESPACES) and walls.stands(Wall.NETWORK):
        return network.leave()
    return False, False


def _hide(walls: Walls, standing: Standing) -> None:
    """Decides whether other processes of the same user could read this one's memory, if the walls
    around them did not prevent it.
    """
    if walls.gpu:
        # The driver writes to its own files in /proc, which otherwise belong to root. A change of
        # the user resets this.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    elif Wall.FILES in standing.missing:
        keep_to_itself()


class _Given:
    """Files that a confined process may access."""

    def __init__(self, walls: Walls) -> None:
        libraries = (*places.libraries(), *(gpu_places.libraries() if walls.gpu else ()))
        self.libraries = places.without(libraries, walls.kept_back)
        self.runs = [*walls.runs]
        self.reads = [*walls.reads, *(link for path in walls.reads for link in _linked(path))]

    def are_readable(self) -> bool:
        """Returns True if all files are readable without a capability."""
        return all(
            os.access(path, os.R_OK, effective_ids=True)
            for path in (*_walked(self.reads), *self.runs, *self.libraries)
        )


def _ruleset(walls: Walls, given: _Given, standing: Standing) -> landlock.Ruleset | None:
    is_open = not walls.stands(Wall.NETWORK)
    try:
        ruleset = landlock.Ruleset(
            tcp=walls.has_child or is_open,
            files=not walls.stands(Wall.FILES),
            sockets=is_open,
            signals=not walls.stands(Wall.SIGNALS),
        )
    except OSError:
        standing.note(Wall.FILES, "this kernel has no Landlock")
        return None
    ruleset.allow(landlock.RUN, [*given.libraries, *given.runs])
    ruleset.allow(landlock.LIST, places.without(places.listed(), walls.kept_back))
    ruleset.allow(landlock.READ, [*given.reads, *places.facts()])
    ruleset.allow(landlock.DEVICE, places.devices())
    ruleset.allow(landlock.WRITE, [walls.folder, *walls.writes])
    if walls.gpu:
        ruleset.allow(landlock.DEVICE, [*gpu_places.gpus(), *gpu_places.mps()])
    if walls.gpu or walls.has_child:
        # gloo, in vLLM, reads the network interfaces there.
        ruleset.allow(landlock.READ, gpu_places.facts())
        ruleset.allow(landlock.WRITE, gpu_places.shared_memory())
    if walls.has_child:
        # The child's own entry in /proc is not this process's.
        ruleset.allow(landlock.READ, [Path("/proc")])
    for opening in walls.opened(Wall.FILES):
        rights = landlock.DEVICE if opening.is_written else landlock.READ
        # A link could lead to a folder that contains the server's.
        target = Path(os.path.realpath(opening.item))
        ruleset.allow(rights, places.without([target], walls.kept_back))
    return ruleset


def _allow_thread_names(ruleset: landlock.Ruleset, walls: Walls) -> None:
    """Must be called after the change of the user, on which the folder depends."""
    if walls.gpu:
        is_root = os.geteuid() == 0
        folders = gpu_places.thread_names(has_child=walls.has_child, is_root=is_root)
        ruleset.allow(landlock.NAME, folders)


def _change_user(walls: Walls, given: _Given, standing: Standing) -> None:
    user, drops = walls.user, walls.stands(Wall.CAPABILITIES)
    if user is None:
        standing.note(Wall.USER, "it runs as root because no other user is available")
    elif walls.stands(Wall.USER):
        for path in (walls.folder, *walls.writes):
            _hand_over(path, user)
        groups = gpu_places.groups() if walls.gpu else ()
        if standing.put_up(
            Wall.USER,
            lambda: identity.become(
                user, reads=given.are_readable, groups=groups, keeps_capabilities=not drops
            ),
        ):
            return
    if drops:
        standing.put_up(
            Wall.CAPABILITIES, lambda: identity.drop_capabilities(reads=given.are_readable)
        )


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
        families if walls.stands(Wall.NETWORK) else None,
        others=walls.has_child,
        signals=may_signal,
        memory_files=walls.gpu or walls.has_child,
        allowed=[opening.item for opening in walls.opened(Wall.SYSTEM_CALLS)],
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


def limit_file_size(size: int) -> None:
    """Lowers the maximum size in bytes of a written file."""
    _lower(resource.RLIMIT_FSIZE, size)


def machine_bytes() -> int:
    """Returns the size of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    if most != resource.RLIM_INFINITY:
        value = min(value, most) if value != resource.RLIM_INFINITY else most
    resource.setrlimit(limit, (value, value))


def most_processes() -> int:
    """Returns the maximum number of processes of one replica, including its threads."""
    return max(LEAST_PROCESSES, PROCESSES_PER_CORE * (os.cpu_count() or 1))
