"""Prepares the items of requests: in the replica, or in other processes if that is too slow.

Other processes are used for a model only after two checks: preparation left the stages unchanged,
and a process returned the same samples for an item as the replica.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, cast

from stoker.media.media import Media
from stoker.models.stages.base import Sample, Stages
from stoker.replica.counters import Counters
from stoker.replica.mean_time import FIRST_ITEMS
from stoker.replica.preparation.demand import PreparationDemand
from stoker.replica.preparation.parent import PreparationParent
from stoker.replica.preparation.payload import NotTransferableError, copied
from stoker.replica.preparation.pool import PreparationJob, PreparationPool, Prepared
from stoker.replica.preparation.stages_copy import StagesCopy, same_samples
from stoker.replica.task_request import RequestState
from stoker.wire.protocol import Work

log = logging.getLogger(__name__)

_MOST_CHANGES = 3
"""Number of changes of the stages after which they are not copied any more."""


class _State(Enum):
    HERE = auto()
    """The replica prepares all items."""
    TRYING = auto()
    """As `HERE`, and a process prepares one item for comparison."""
    PROVED = auto()
    """Processes may prepare items."""
    REFUSED = auto()
    """As `HERE`, until the replica ends."""


class _NotTriedError(Exception):
    """Raised for the compared item if no process was available."""


class Preparer:
    """Used by the thread that prepares inputs. The pool's thread calls `_loaded` and `_compare`."""

    def __init__(
        self,
        stages: Stages,
        parent: PreparationParent | None,
        counters: Counters,
        *,
        is_hungry: Callable[[], bool],
        is_behind: Callable[[], bool],
    ) -> None:
        """
        Args:
            parent: parent of preparation processes. None: the replica prepares all items.
            is_hungry: returns True if the engine would use more samples than it gets.
            is_behind: returns True if other items wait.
        """
        self._stages = stages
        self._demand = PreparationDemand()
        self._is_hungry = is_hungry
        self._is_behind = is_behind
        self._copy = StagesCopy()
        self._changes = 0
        self._items_left = 0
        """Number of items until the stages are compared with their copy."""
        self._expected: Sequence[Sample] = ()
        self._pool = (
            PreparationPool(
                parent, self._demand, counters, is_hungry=is_hungry, loaded=self._loaded
            )
            if parent
            else None
        )
        self._state = _State.HERE

    @property
    def processes(self) -> list[int]:
        """Ids of the processes."""
        return self._pool.pids if self._pool else []

    @property
    def is_quick(self) -> bool:
        """True if the next item is prepared at once."""
        return self._demand.is_quick

    def take(self, request: RequestState, index: int, deliver: Callable[[Prepared], None]) -> bool:
        """Returns True if another process prepares an item.

        Args:
            deliver: receives the outcome on another thread, unless the request is done before.
        """
        pool, work = self._pool, request.work
        if pool is None or self._state is not _State.PROVED or shares_media(work.items, index):
            return False
        if self._stages.attachments != self._copy.attachments:
            # The processes know the previous model only.
            self._state = _State.HERE
            return False
        if not (pool.is_open or (pool.may_open and self._is_wanted)):
            return False
        pool.put(
            PreparationJob(
                work.items[index],
                work.parameters,
                work.key,
                is_done=lambda: request.done,
                deliver=lambda outcome: deliver(lambda: self._completed(outcome(), work)),
                prepare=lambda: self._read(work, index),
                tier=work.tier,
            )
        )
        return True

    def prepare(self, work: Work, index: int) -> list[Sample]:
        """Prepares an item here. Raises the errors of `Stages.preprocess`."""
        return self._completed(self._read(work, index), work)

    def _completed(self, samples: list[Sample], work: Work) -> list[Sample]:
        return self._stages.completed(samples, work.parameters)

    def _read(self, work: Work, index: int) -> list[Sample]:
        item, parameters = work.items[index], work.parameters
        started = time.perf_counter()
        samples = self._stages.preprocess_item(item, parameters)
        self._demand.took(time.perf_counter() - started)
        self._items_left -= 1
        if self._pool and self._state is _State.HERE and self._items_left <= 0 and self._is_wanted:
            self._try(self._pool, item, parameters, samples)
        return samples

    def finish(self) -> None:
        """Waits for the outcomes of all jobs and ends the processes."""
        self._state = _State.REFUSED
        if self._pool:
            self._pool.finish()

    @property
    def _is_wanted(self) -> bool:
        return self._demand.is_slow and self._is_behind() and self._is_hungry()

    def _try(
        self,
        pool: PreparationPool,
        item: Any,
        parameters: Mapping[str, Any],
        samples: Sequence[Sample],
    ) -> None:
        """Lets a process prepare an item for comparison, unless the stages changed recently."""
        self._items_left = FIRST_ITEMS
        try:
            pickled, is_same = self._copy.take(self._stages)
            self._expected = copied(list(samples))
        except NotTransferableError as error:
            self._refuse(f"they cannot be copied: {error}")
            return
        if not is_same:
            self._changes += 1
            if self._changes > _MOST_CHANGES:
                self._refuse("preparation changes them")
            return
        self._state = _State.TRYING
        pool.load(pickled)
        pool.put(
            PreparationJob(
                item, parameters, "", is_done=lambda: False, deliver=self._compare, prepare=_skip
            )
        )

    def _compare(self, outcome: Prepared) -> None:
        if self._state is not _State.TRYING:
            return
        try:
            is_same = same_samples(self._expected, outcome())
        except _NotTriedError:
            self._state = _State.HERE
            return
        except Exception as error:
            self._refuse(f"a process could not prepare an item: {error}")
            return
        if is_same:
            self._state = _State.PROVED
            log.info("inputs are prepared in other processes")
        else:
            self._refuse("a process prepared an item differently")

    def _loaded(self, problem: str) -> None:
        if problem:
            self._refuse(problem)

    def _refuse(self, why: str) -> None:
        self._state = _State.REFUSED
        log.warning("inputs are prepared in the replica only: %s", why)


def shares_media(items: Sequence[Any], index: int) -> bool:
    """Returns True if an item and its neighbour have media in common. The replica decodes them
    once.
    """
    neighbours = [*items[max(0, index - 1) : index], *items[index + 1 : index + 2]]
    if not neighbours:
        return False
    known = {id(media) for neighbour in neighbours for media in _media(neighbour)}
    return any(id(media) in known for media in _media(items[index]))


def _media(item: Any) -> Iterator[Media]:
    if isinstance(item, Media):
        yield item
    elif isinstance(item, Mapping):
        for value in cast("Mapping[Any, Any]", item).values():
            yield from _media(value)
    elif isinstance(item, list | tuple):
        for value in cast("Sequence[Any]", item):
            yield from _media(value)


def _skip() -> list[Sample]:
    raise _NotTriedError
