"""Finds the walls that make an attempt fail, and the path or system call that a wall blocks."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.sandbox import seccomp
from stoker.sandbox.attempt import Attempt, problem_of
from stoker.sandbox.openings import Opening, Wall
from stoker.sandbox.walls import Walls

PUT_UP = (
    *(Wall.FILES, Wall.SYSTEM_CALLS, Wall.USER, Wall.CAPABILITIES, Wall.SIGNALS),
    *(Wall.NETWORK, Wall.NAMESPACES, Wall.PROCESSES, Wall.LIMITS),
)
"""Walls in the order of their importance. If two exclude each other, the first stands."""
_DEPTH = 8
"""Maximum number of folders between the root and a blocked file."""
_SELF = Path("/proc/self")
_MOST_ENTRIES = 1000
"""Maximum number of entries of a folder that are tried one by one."""


@dataclass(frozen=True)
class Diagnosis:
    """Result of an attempt behind all walls."""

    problem: str = ""
    """Problem behind all walls. Empty if there is none."""
    bare_problem: str = ""
    """Problem without any walls, which are then not the cause. Empty if there is none."""
    openings: Sequence[Opening] = field(default_factory=list[Opening])
    """Smallest openings with which the attempt succeeds."""


@dataclass(frozen=True)
class Diagnosing:
    """One diagnosis.

    Args:
        deadline: time of `time.monotonic` after which the openings are not narrowed any further.
    """

    walls: Walls
    attempt: Attempt
    timeout_s: float
    deadline: float

    def run(self) -> Diagnosis:
        problem = self.problem()
        if not problem:
            return Diagnosis()
        if bare_problem := problem_of(self.attempt, self.timeout_s):
            return Diagnosis(problem, bare_problem)
        openings = self._blocking()
        if openings is None:
            return Diagnosis(problem, "", [])
        for wall in (Wall.SYSTEM_CALLS, Wall.FILES):
            if Opening(wall) in openings:
                rest = [opening for opening in openings if opening.wall is not wall]
                openings = [*rest, *self._narrowed(wall, rest)]
        return Diagnosis(problem, "", openings)

    def problem(self, openings: Sequence[Opening] = ()) -> str:
        """Returns the problem of the attempt behind all walls with these openings."""
        walls = replace(self.walls, openings=[*openings])
        return problem_of(self.attempt, self.timeout_s, walls)

    def problem_behind(self, wall: Wall) -> str:
        """Returns the problem of the attempt behind one wall only."""
        # The network is a part of two walls' rules, and the namespaces are a part of the network.
        kept = {wall, Wall.NETWORK} if wall is Wall.NAMESPACES else {wall}
        return self.problem([Opening(other) for other in PUT_UP if other not in kept])

    def _works(self, openings: Sequence[Opening]) -> bool:
        return not self.problem(openings)

    def _blocking(self) -> list[Opening] | None:
        """Returns the walls that make the attempt fail. Adds the walls one by one.

        None if the attempt fails even without any walls.
        """
        left_out = [Opening(wall) for wall in PUT_UP]
        if not self._works(left_out):
            return None
        for opening in [*left_out]:
            fewer = [other for other in left_out if other is not opening]
            if self._works(fewer):
                left_out = fewer
        return left_out

    def _narrowed(self, wall: Wall, rest: Sequence[Opening]) -> list[Opening]:
        """Returns the smallest openings of a wall that suffice, or the whole wall."""
        if wall is Wall.SYSTEM_CALLS:
            calls = [Opening(wall, name) for name in seccomp.rejected()]
            return self._smallest(calls, rest) or [Opening(wall)]
        return self._paths(rest) or [Opening(wall)]

    def _paths(self, rest: Sequence[Opening]) -> list[Opening]:
        """Returns the paths that suffice. Starts at the root and replaces folders by entries."""
        for is_written in (False, True):
            paths = _entries(Path("/"), self.walls.kept_back)
            roots = [Opening(Wall.FILES, str(path), is_written) for path in paths]
            openings = self._smallest(roots, rest)
            if openings:
                break
        else:
            return []
        for _ in range(_DEPTH):
            deeper = self._one_deeper(openings, rest)
            if deeper == openings:
                break
            openings = deeper
        return [self._read_only(opening, openings, rest) for opening in openings]

    def _one_deeper(self, openings: list[Opening], rest: Sequence[Opening]) -> list[Opening]:
        for opening in openings:
            others = [other for other in openings if other is not opening]
            paths = _entries(Path(opening.item), self.walls.kept_back)
            entries = [replace(opening, item=str(path)) for path in paths]
            if 0 < len(entries) <= _MOST_ENTRIES:
                smaller = self._smallest(entries, [*rest, *others])
                openings = [*others, *smaller] if smaller else openings
        return openings

    def _read_only(
        self, opening: Opening, openings: Sequence[Opening], rest: Sequence[Opening]
    ) -> Opening:
        others = [other for other in openings if other is not opening]
        read = replace(opening, is_written=False)
        if opening.is_written and others and self._works([*rest, *others, read]):
            return read
        return opening

    def _smallest(self, candidates: list[Opening], rest: Sequence[Opening]) -> list[Opening]:
        """Returns the smallest subset of the candidates that suffices. Empty if all candidates
        together do not suffice, or after the deadline.
        """
        if self._is_late or not self._works([*rest, *candidates]):
            return []
        smallest = smallest_part(
            candidates, lambda part: not self._is_late and self._works([*rest, *part])
        )
        # Without attempts, the part is arbitrary.
        return [] if self._is_late else smallest

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline


def smallest_part(
    candidates: list[Opening], works: Callable[[list[Opening]], bool]
) -> list[Opening]:
    """Returns a minimal subset of the candidates that works (QuickXplain).

    Needs about two attempts per result and halving. All candidates together must work, and the
    empty subset must not.
    """

    def explained(base: list[Opening], rest: list[Opening], *, is_new: bool) -> list[Opening]:
        if is_new and works(base):
            return []
        if len(rest) <= 1:
            return rest
        middle = len(rest) // 2
        first, second = rest[:middle], rest[middle:]
        of_second = explained([*base, *first], second, is_new=True)
        of_first = explained([*base, *of_second], first, is_new=bool(of_second))
        return [*of_first, *of_second]

    return explained([], candidates, is_new=False)


def _entries(folder: Path, kept_back: Path) -> Iterator[Path]:
    """Yields the entries of a folder, without links and other processes' entries in /proc. Instead
    of an entry that contains `kept_back`, yields the entries next to that folder.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return
    for name in names:
        path = folder / name
        is_other = folder == Path("/proc") and name.isdecimal()
        if path == kept_back or is_other or (path.is_symlink() and path != _SELF):
            continue
        if kept_back.is_relative_to(path):
            yield from _entries(path, kept_back)
        else:
            yield path
