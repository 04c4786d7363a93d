"""Runs a model in one way, calls it with the examples, and measures.

Beside the deployment, as another one that nobody can name: it is loaded, converted, tried, called
and ended as all are, so that what is measured is what would serve. Between any two passes it waits
until nobody else's calls are at work.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from stoker.base.errors import InvalidRequestError, ModelLoadingError, NotFoundError, StokerError
from stoker.base.ids import Prefix, new_id
from stoker.inference.call import Calls
from stoker.models.engines.catalogue import ENGINES
from stoker.registry.deployments.directory import Entry
from stoker.runtime.observed import Status
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.evaluation.replay.comparison import Comparison
from stoker.workloads.evaluation.replay.examples import SHAPES
from stoker.workloads.evaluation.replay.internal_client import InternalClient
from stoker.workloads.evaluation.trials.schemas import Row, RowStatus

MODEL_CHARS = 100
"""Characters of the model id that usage and events show for a trial."""
AT_ONCE = 16
"""Examples of a batch."""
ROUNDS, ROUNDS_S = 5, 8.0
"""Passes over all examples, or fewer where they take longer than so many seconds."""
LEAST_S = 2.0
"""Further ones until they have taken so long: what is over in a moment is noise."""
CONVERTED_S = 1800.0
"""Longest wait for a conversion and its trial."""
SETTLED_S = 60.0
"""Longest wait for what a replica measures in its idle moments."""
GIVE_WAY_S = 10.0
"""Longest wait for others' calls before each pass."""
REST_S = 0.001
"""Between an answer and the next call of one caller: a client's comes no sooner, and finds the
engine's threads asleep."""
_WEIGHED_S = 5.0
_LOOK_S = 0.05


class NotRunError(Exception):
    """The model does not run this way; the message tells why."""


@dataclass(kw_only=True)
class Subject:
    """What is tried."""

    trial_id: str
    entry: Entry
    """Of the deployment."""
    path: str
    examples: list[Mapping[str, Any]]
    may_drop: bool
    """Whether examples that the model refuses are left out: made-up ones may be too long for it."""
    still_wanted: Callable[[], bool]


class TrialConfiguration:
    """A model at work in one way, until it is closed."""

    def __init__(self, calls: Calls, subject: Subject, spec: DeploymentSpec) -> None:
        """
        Args:
            spec: of the deployment as it would be; it gets an id of its own.
        """
        self._subject = subject
        self._runtime = calls.runtime
        self._settings = calls.settings
        self._spec = replace(
            spec,
            id=new_id(Prefix.DEPLOYMENT),
            # Usage of all rows of a trial is counted under the trial, not under the deployment.
            deployment_id=subject.trial_id,
            model=f"{spec.model[:MODEL_CHARS]} (trial)",
            # The first to go where others need the memory.
            readiness=Readiness.COLD,
            min_replicas=0,
            max_replicas=1,
            idle_timeout_s=CONVERTED_S,
            max_queue=max(spec.max_queue, AT_ONCE),
            # Engines that take none are tried, too: what they say may be worth a copy.
            has_adapters=False,
        )
        self._inside = InternalClient(calls, subject.entry, self._spec.id)
        self._bodies: list[bytes] = []

    async def measured(self) -> tuple[Row, list[bytes]]:
        """A row without a comparison, and the answer to each example.

        Raises `NotRunError`, and `StokerError` where the trial has to end.
        """
        self._runtime.apply(self._spec, running=True)
        try:
            await self._taken()
            await self._converted()
            # Of what it is converted into.
            answers = [await self._pass(body) for body in self._bodies]
            await self._settled()
            alone_s = await self._alone()
            items_per_s = await self._together()
            found = Row(
                engine=self._spec.engine,
                dtype=self._spec.dtype,
                weight_format=self._spec.config.get("weight_format"),
                status=RowStatus.MEASURED,
                alone_ms=round(alone_s * 1000, 3),
                items_per_s=round(items_per_s, 2),
                memory_bytes=await self._memory(),
            )
            return found, answers
        finally:
            await self._runtime.remove(self._spec.id)

    async def _taken(self) -> None:
        """Find the examples that it takes: all of them, but for made-up ones."""
        for example in list(self._subject.examples):
            body = self._inside.body(example)
            try:
                await self._pass(body)
            except NotRunError as error:
                is_refused = isinstance(error.__cause__, InvalidRequestError)
                if not (is_refused and self._subject.may_drop and len(self._subject.examples) > 1):
                    raise
                self._subject.examples.remove(example)
            else:
                self._bodies.append(body)
        # The others are compared with the same.
        self._subject.may_drop = False

    async def _alone(self) -> float:
        """Seconds that an example takes on average.

        A median of all would be that of one or two examples where these are of different lengths;
        of each example's own it would leave out the slow calls, which a client's average has: 3 to
        8 % of it, for a model that takes 4 to 7 ms.
        """
        times: list[float] = []
        for _ in self._rounds(2):
            for body in self._bodies:
                await self._give_way()
                await asyncio.sleep(REST_S)
                started = time.perf_counter()
                await self._call(body)
                times.append(time.perf_counter() - started)
        return statistics.fmean(times)

    async def _together(self) -> float:
        """Inputs a second of so many callers, each of whom asks again once it is answered."""
        ended: list[tuple[float, int]] = []
        """When an example was answered, and how many inputs it has."""
        counts = self._inputs()
        asked = itertools.cycle(zip(self._bodies, counts, strict=True))
        turns = (one for _ in self._rounds(3) for one in range(AT_ONCE))

        async def ask() -> None:
            for _ in turns:
                body, count = next(asked)
                await self._give_way()
                await self._call(body)
                ended.append((time.perf_counter(), count))

        callers = [asyncio.create_task(ask()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*callers)
        finally:
            for one in callers:
                one.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        return steady_rate(ended, AT_ONCE)

    @staticmethod
    def _rounds(least: int) -> Iterator[int]:
        began = time.perf_counter()
        for number in itertools.count():
            took = time.perf_counter() - began
            most = ROUNDS_S if number < ROUNDS else LEAST_S
            if number >= least and took >= most:
                return
            yield number

    def _inputs(self) -> list[int]:
        """How many each example has."""
        shape = SHAPES[self._subject.path]
        names = getattr(shape.request, "input_fields", ())[:1]
        given = [one.get(name) for one in self._subject.examples for name in names]
        if not given:
            return [1] * len(self._subject.examples)
        return [len(cast("list[Any]", one)) if isinstance(one, list) else 1 for one in given]

    async def _pass(self, body: bytes) -> bytes:
        """As `_call`, for a model that may have to be loaded before."""
        deadline = time.monotonic() + self._settings.load_timeout_s
        while True:
            await self._give_way()
            try:
                return await self._call(body)
            except NotRunError as error:
                is_loading = isinstance(error.__cause__, ModelLoadingError)
                if not is_loading or self._has_failed or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_LOOK_S)

    @property
    def _has_failed(self) -> bool:
        """Whether it could not be loaded, rather than that it takes long."""
        stats = self._runtime.stats(self._spec.id)
        return stats is not None and stats.status is Status.FAILED

    async def _give_way(self) -> None:
        """Let others' calls go first, for so long that a server that is always busy measures, too.

        Raises `NotFoundError` where nobody wants to know any more.
        """
        deadline = time.monotonic() + GIVE_WAY_S
        while True:
            if not self._subject.still_wanted():
                raise NotFoundError("Deployment not found", code="deployment_not_found")
            is_quiet = not self._runtime.at_work(besides=self._spec.id)
            if is_quiet or time.monotonic() > deadline:
                return
            await asyncio.sleep(_LOOK_S)

    async def _call(self, body: bytes) -> bytes:
        """The answer to a body. Raises `NotRunError`, `InsufficientCreditsError`."""
        try:
            return await self._inside.answer(self._subject.path, body)
        except StokerError as error:
            raise NotRunError(error.message) from error

    async def _converted(self) -> None:
        """Wait until an engine that converts models runs it. Raises `NotRunError`."""
        record = ENGINES.get(self._spec.engine)
        if record is None or not record.converts:
            return
        deadline = time.monotonic() + CONVERTED_S
        while time.monotonic() < deadline:
            stats = self._runtime.stats(self._spec.id)
            if stats and stats.status is Status.FAILED:
                raise NotRunError(stats.message)
            if stats and any(one.engine == record.name for one in stats.replicas):
                return
            if not self._subject.still_wanted():
                raise NotFoundError("Deployment not found", code="deployment_not_found")
            if not (stats and stats.replicas):
                # It had to go for others.
                await self._pass(self._bodies[0])
            await asyncio.sleep(_LOOK_S)
        raise NotRunError(f"It was not converted within {CONVERTED_S:g} s.")

    async def _settled(self) -> None:
        """Leave it alone until it has found out how large its batches had best be."""
        deadline = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline:
            stats = self._runtime.stats(self._spec.id)
            if stats and any(one.is_settled for one in stats.replicas):
                return
            if not self._subject.still_wanted():
                return
            await asyncio.sleep(_LOOK_S)

    async def _memory(self) -> int | None:
        """What its replica holds, once somebody has looked."""
        deadline = time.monotonic() + _WEIGHED_S
        while time.monotonic() < deadline:
            stats = self._runtime.stats(self._spec.id)
            found = (
                [one.memory_bytes for one in stats.replicas if one.memory_bytes] if stats else []
            )
            if found:
                return found[0]
            await asyncio.sleep(_LOOK_S)
        return None


def steady_rate(ended: Sequence[tuple[float, int]], callers: int) -> float:
    """Inputs a second of callers who each ask again once they are answered.

    Not of the first ones, who come in a crowd, nor of the last ones, of whom there are ever fewer.
    It is counted from the last of a crowd to the last of another, as those who begin together may
    end so: a batch of all of them, again and again.

    Args:
        ended: three times as many as callers at least, in order: the second at which an answer
            came, and how many inputs it was for.
    """
    counted = ended[callers:-callers]
    seconds = counted[-1][0] - ended[callers - 1][0]
    return sum(inputs for _, inputs in counted) / max(seconds, 1e-9)


async def compared(
    comparer: Comparer, account: str, row: Row, reference: Sequence[bytes], answers: Sequence[bytes]
) -> Row:
    """The row, with what its answers are beside the reference's."""
    comparison = Comparison()
    for pair in zip(reference, answers, strict=True):
        comparison.merge(await comparer.compare(account, *pair))
    values: dict[str, Any] = {
        "difference": comparison.difference,
        "agreement": comparison.agreement,
        "measure": comparison.measure,
        "reason": comparison.caution or row.reason,
    }
    if comparison.differs:
        values |= {"status": RowStatus.DIFFERS, "reason": comparison.in_words()}
    return row.model_copy(update=values)
