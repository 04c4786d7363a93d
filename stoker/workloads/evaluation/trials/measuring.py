"""Runs a model in one configuration, calls it with the examples, and measures.

The trial runs next to the deployment, as a separate one that clients cannot call. It is loaded,
converted, tried, called and ended like any other, so that the measurement applies to serving.
Between any two passes it waits until no other calls are active.
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
from stoker.inference.calls import Calls
from stoker.inference.registry import OPERATIONS
from stoker.models.engines.catalogue import ENGINES
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.observed import Status
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.evaluation.replay.comparison import Comparison
from stoker.workloads.evaluation.replay.internal_client import InternalClient
from stoker.workloads.evaluation.trials.schemas import Row, RowStatus

MODEL_CHARS = 100
"""Characters of the model id that usage and events show for a trial."""
AT_ONCE = 16
"""Number of examples in a batch."""
ROUNDS, ROUNDS_S = 5, 8.0
"""Number of passes over all examples, and the seconds after which passes end early."""
LEAST_S = 2.0
"""Minimum measuring time in seconds. Passes continue until it is reached, as very short
measurements are noise.
"""
CONVERTED_S = 1800.0
"""Longest wait in seconds for a conversion and its trial."""
SETTLED_S = 60.0
"""Longest wait in seconds for a replica's measurements in its idle time."""
GIVE_WAY_S = 10.0
"""Longest wait in seconds for others' calls before each pass."""
REST_S = 0.001
"""Seconds between an answer and the next call of one caller. A client's call comes no sooner, and
finds the engine's threads asleep.
"""
_WEIGHED_S = 5.0
_LOOK_S = 0.05


class NotRunError(Exception):
    """The model does not run this way. The message contains the reason."""


@dataclass(kw_only=True)
class Subject:
    """The deployment and examples of a trial."""

    trial_id: str
    entry: DirectoryEntry
    """Entry of the deployment."""
    path: str
    examples: list[Mapping[str, Any]]
    may_drop: bool
    """True if examples that the model rejects are left out: made-up ones may be too long for it."""
    still_wanted: Callable[[], bool]


class TrialConfiguration:
    """A model that runs in one configuration until it is closed."""

    def __init__(self, calls: Calls, subject: Subject, spec: DeploymentSpec) -> None:
        """
        Args:
            spec: the deployment's specification in this configuration. It receives a separate id.
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
            # Evicted first when others need the memory.
            readiness=Readiness.COLD,
            min_replicas=0,
            max_replicas=1,
            idle_timeout_s=CONVERTED_S,
            max_queue=max(spec.max_queue, AT_ONCE),
            # Engines without adapter support are tried, too: their results may justify a copy.
            has_adapters=False,
        )
        self._inside = InternalClient(calls, subject.entry, self._spec.id)
        self._bodies: list[bytes] = []

    async def measured(self) -> tuple[Row, list[bytes]]:
        """Returns a row without a comparison, and the answer to each example.

        Raises `NotRunError`, and `StokerError` if the trial must end.
        """
        self._runtime.apply(self._spec, running=True)
        try:
            await self._taken()
            await self._converted()
            # Answers of the converted model.
            answers = [await self._pass(body) for body in self._bodies]
            await self._settled()
            alone_s = await self._alone()
            items_per_s = await self._together()
            row = Row(
                engine=self._spec.engine,
                dtype=self._spec.dtype,
                weight_format=self._spec.config.get("weight_format"),
                status=RowStatus.MEASURED,
                alone_ms=round(alone_s * 1000, 3),
                items_per_s=round(items_per_s, 2),
                memory_bytes=await self._memory(),
            )
            return row, answers
        finally:
            await self._runtime.remove(self._spec.id)

    async def _taken(self) -> None:
        """Finds the examples that the model accepts. Only made-up examples may be rejected."""
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
        # The other configurations are compared with the same examples.
        self._subject.may_drop = False

    async def _alone(self) -> float:
        """Returns the mean seconds per example.

        A median of all calls would reflect only one or two examples if these have different
        lengths. A median per example would leave out slow calls, which are part of a client's
        average. They are 3 to 8 % of it, for a model that takes 4 to 7 ms.
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
        """Returns inputs per second for concurrent callers that each call again once they are
        answered.
        """
        ended: list[tuple[float, int]] = []
        """Time of each answer, and its number of inputs."""
        counts = self._inputs()
        requests = itertools.cycle(zip(self._bodies, counts, strict=True))
        turns = (item for _ in self._rounds(3) for item in range(AT_ONCE))

        async def ask() -> None:
            for _ in turns:
                body, count = next(requests)
                await self._give_way()
                await self._call(body)
                ended.append((time.perf_counter(), count))

        callers = [asyncio.create_task(ask()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*callers)
        finally:
            for item in callers:
                item.cancel()
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
        """Returns the number of inputs of each example."""
        operation = OPERATIONS[self._subject.path]
        names = getattr(operation.request, "input_fields", ())[:1]
        values = [item.get(name) for item in self._subject.examples for name in names]
        if not values:
            return [1] * len(self._subject.examples)
        return [len(cast("list[Any]", item)) if isinstance(item, list) else 1 for item in values]

    async def _pass(self, body: bytes) -> bytes:
        """Calls the model like `_call`, and waits if it has to be loaded first."""
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
        """True if loading failed, and is not merely slow."""
        stats = self._runtime.stats(self._spec.id)
        return stats is not None and stats.status is Status.FAILED

    async def _give_way(self) -> None:
        """Waits for others' calls. The wait is limited, so that a permanently busy server measures,
        too.

        Raises `NotFoundError` if the trial is no longer wanted.
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
        """Returns the answer to a body. Raises `NotRunError`, `InsufficientCreditsError`."""
        try:
            return await self._inside.answer(self._subject.path, body)
        except StokerError as error:
            raise NotRunError(error.message) from error

    async def _converted(self) -> None:
        """Waits until an engine that converts models runs the converted model. Raises
        `NotRunError`.
        """
        record = ENGINES.get(self._spec.engine)
        if record is None or not record.converts:
            return
        deadline = time.monotonic() + CONVERTED_S
        while time.monotonic() < deadline:
            stats = self._runtime.stats(self._spec.id)
            if stats and stats.status is Status.FAILED:
                raise NotRunError(stats.message)
            if stats and any(replica.engine == record.name for replica in stats.replicas):
                return
            if not self._subject.still_wanted():
                raise NotFoundError("Deployment not found", code="deployment_not_found")
            if not (stats and stats.replicas):
                # The replica was unloaded for others.
                await self._pass(self._bodies[0])
            await asyncio.sleep(_LOOK_S)
        raise NotRunError(f"The model was not converted within {CONVERTED_S:g} s.")

    async def _settled(self) -> None:
        """Waits while the replica determines its best batch size."""
        deadline = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline:
            stats = self._runtime.stats(self._spec.id)
            if stats and any(replica.is_settled for replica in stats.replicas):
                return
            if not self._subject.still_wanted():
                return
            await asyncio.sleep(_LOOK_S)

    async def _memory(self) -> int | None:
        """Returns the memory of the replica in bytes, once it has been measured."""
        deadline = time.monotonic() + _WEIGHED_S
        while time.monotonic() < deadline:
            stats = self._runtime.stats(self._spec.id)
            sizes = (
                [replica.memory_bytes for replica in stats.replicas if replica.memory_bytes]
                if stats
                else []
            )
            if sizes:
                return sizes[0]
            await asyncio.sleep(_LOOK_S)
        return None


def steady_rate(ended: Sequence[tuple[float, int]], callers: int) -> float:
    """Returns inputs per second of callers that each call again once they are answered.

    The first calls are excluded because they arrive together. The last calls are excluded because
    fewer and fewer callers remain. Time is counted from the last answer of one group to the last
    answer of another. Calls that begin together may end together: a batch of all of them, again and
    again.

    Args:
        ended: at least three times as many entries as callers, in order. Each holds the second at
            which an answer came, and its number of inputs.
    """
    counted = ended[callers:-callers]
    seconds = counted[-1][0] - ended[callers - 1][0]
    return sum(inputs for _, inputs in counted) / max(seconds, 1e-9)


async def compared(
    comparer: Comparer, account: str, row: Row, reference: Sequence[bytes], answers: Sequence[bytes]
) -> Row:
    """Returns the row with a comparison of its answers to the reference's."""
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
